"""Prompt embeddings: reads what a caller gives as `prompt_embeds` and makes `InputRows` of it.

Called by `PromptParser`. Takes NumPy arrays and whatever has a tensor's methods, such as torch's,
without importing torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.config.records import ModelConfig
from quire.errors import PromptError, quoted
from quire.protocol.input_rows import InputRows

PLACEHOLDER = 0
"""Token id of a position whose embedding is given; vLLM's choice."""
NOT_ENABLED = "You must set `--enable-prompt-embeds` to input `prompt_embeds`."


def embeds_error(message: str) -> PromptError:
    """An error that names the field."""
    return PromptError(message, parameter="prompt_embeds")


def read_embeds(value: Any, width: int | None, max_model_len: int) -> NDArray[np.float32]:
    """The rows [n, width]. `width`: numbers of a row; None: the engine takes no prompt embeddings.
    Raises PromptError for anything else than finite rows of this width, at least one of them."""
    if width is None:
        raise embeds_error(NOT_ENABLED)
    return as_rows(value, width, max_model_len, "prompt_embeds")


def as_rows(value: Any, width: int, most: int, name: str) -> NDArray[np.float32]:
    """Rows [n, width] in float32, at most `most`. `name`: the field. Raises PromptError."""

    def wrong(message: str) -> PromptError:
        return PromptError(f"`{name}` {message}", parameter=name)

    shape = tuple(getattr(value, "shape", ()))
    if not hasattr(value, "dtype") or not hasattr(value, "ndim"):
        raise wrong(
            "must be an array or a tensor of shape (num_tokens, hidden_size), got "
            f"{quoted(value)} ({type(value).__name__})"
        )
    if len(shape) == 3 and shape[0] == 1:
        value, shape = value[0], shape[1:]
    if len(shape) != 2:
        raise wrong(f"must be a 2D tensor of shape (num_tokens, hidden_size); got shape {shape}.")
    if shape[1] != width:
        raise wrong(f"hidden_size {shape[1]} does not match the model's hidden_size {width}.")
    if not 1 <= shape[0] <= most:
        raise wrong(
            f"must have from 1 to {most} rows, as many as the model's context has tokens; got "
            f"{shape[0]}."
        )
    rows = _as_float32(value, wrong)
    if not np.isfinite(rows).all():
        bad = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
        raise wrong(f"must be finite in float32, but row {bad} has a NaN or an infinity.")
    return rows


def given_ranges(is_token: Any, num_rows: int) -> list[range]:
    """The positions whose embeddings are given. `is_token`: vLLM's `prompt_is_token_ids`; None: all
    positions are given. Raises PromptError."""
    if is_token is None:
        return [range(num_rows)]
    mask = is_token.tolist() if hasattr(is_token, "tolist") else is_token
    if not isinstance(mask, Sequence) or not all(isinstance(one, bool) for one in mask):
        raise PromptError(
            f"prompt_is_token_ids must be a list of booleans, got {quoted(is_token)}",
            parameter="prompt_is_token_ids",
        )
    if len(mask) != num_rows:
        raise PromptError(
            "prompt_is_token_ids must have the same length as prompt_embeds (expected "
            f"{num_rows}, got {len(mask)}).",
            parameter="prompt_is_token_ids",
        )
    edges = np.flatnonzero(np.diff(np.array([True, *mask, True], np.int8))).tolist()
    return [range(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True)]


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """A prompt's tokens, and the rows that take the place of some of their embeddings."""

    token_ids: list[int]
    input_rows: list[InputRows]

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return sum(len(one.data) for one in self.input_rows)


def rows_of_prompt(
    prompt: Mapping[str, Any],
    token_ids: list[int] | None,
    model: ModelConfig,
    block_size: int,
    *,
    is_cut: bool,
) -> PlacedRows:
    """The rows of a prompt with `prompt_embeds`. `token_ids`: its `prompt_token_ids`. `is_cut`: it
    is to be truncated, which is not supported. Raises PromptError."""
    given = prompt["prompt_embeds"]
    if isinstance(given, PlacedRows):
        return given
    rows = read_embeds(given, model.prompt_embeds_width, model.max_model_len)
    if is_cut:
        raise embeds_error("truncate_prompt_tokens is not supported with prompt_embeds")
    where = given_ranges(prompt.get("prompt_is_token_ids"), len(rows))
    if token_ids is None:
        if where != [range(len(rows))]:
            raise PromptError(
                "prompt_is_token_ids must come with prompt_token_ids", parameter="prompt_token_ids"
            )
        token_ids = [PLACEHOLDER] * len(rows)
    if len(token_ids) != len(rows):
        raise PromptError(
            "prompt_token_ids must have the same length as prompt_embeds (expected "
            f"{len(rows)}, got {len(token_ids)}).",
            parameter="prompt_token_ids",
        )
    for span in where:
        token_ids[span.start : span.stop] = [PLACEHOLDER] * len(span)
    return PlacedRows(token_ids, rows_at(rows, where, block_size))


def rows_among(
    parts: Sequence[Sequence[int]], arrays: Sequence[NDArray[np.float32]], block_size: int
) -> PlacedRows:
    """A prompt of parts with tokens, and arrays of rows between them."""
    placed = PlacedRows([*parts[0]], [])
    for rows, part in zip(arrays, parts[1:], strict=True):
        first = len(placed.token_ids)
        where = [range(first, first + len(rows))]
        placed.input_rows.extend(rows_at(rows, where, block_size, first))
        placed.token_ids.extend([PLACEHOLDER] * len(rows))
        placed.token_ids.extend(part)
    return placed


def rows_at(
    rows: NDArray[np.float32], where: Sequence[range], block_size: int, begin: int = 0
) -> list[InputRows]:
    """Rows [n, width] of a prompt's positions from `begin` on, as far as `where` has the positions.
    They are divided where a block of the KV cache ends, so that prompts whose rows begin alike
    share what is cached of them."""
    found = []
    for span in where:
        borders = range(span.start // block_size * block_size, span.stop, block_size)
        for border in borders:
            first, end = max(border, span.start), min(border + block_size, span.stop)
            data = rows[first - begin : end - begin].astype("<f4").tobytes()
            found.append(InputRows(first, end - first, hashlib.sha256(data).digest(), data))
    return found


def _as_float32(value: Any, wrong: Callable[[str], PromptError]) -> NDArray[np.float32]:
    """The same numbers. Raises PromptError unless they are floating point."""
    is_float = getattr(value, "is_floating_point", None)
    if callable(is_float):  # a tensor
        if not is_float():
            raise wrong(_not_float(value.dtype))
        if str(getattr(value, "layout", "torch.strided")) != "torch.strided":
            raise wrong(f"must be a dense tensor, not one of layout {value.layout}.")
        value = value.detach().to("cpu").float().numpy()
    array = np.asarray(value)
    if array.dtype.name != "bfloat16" and array.dtype.kind != "f":
        raise wrong(_not_float(array.dtype))
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, np.float32)


def _not_float(dtype: Any) -> str:
    return f"dtype {dtype} is not a floating-point type, such as float32."
