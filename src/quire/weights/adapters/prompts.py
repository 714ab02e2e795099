"""`read_prompt_adapter`: the rows of a prompt adapter of PEFT.

PEFT evaluates the encoder of p-tuning, and the projection of prefix tuning, when it saves an
adapter: the file has one tensor, `prompt_embeddings`, with a row for each virtual token. Of prefix
tuning a row is K and V of all layers, as they stand in the cache.
Source: huggingface/peft, `peft_model.py`, `get_prompt_embedding_to_save` and `get_prompt`.
"""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quire.config.checkpoint.model_files import has_file, read_json_object
from quire.errors import CheckpointError, quoted
from quire.units import MiB
from quire.weights.adapters.config import CONFIG_NAME
from quire.weights.adapters.read import open_adapter

_TENSOR = "prompt_embeddings"
_MAX_CONFIG_BYTES = 1 * MiB
_KINDS: dict[str, Literal["embeddings", "kv"]] = {
    "PROMPT_TUNING": "embeddings",
    "P_TUNING": "embeddings",
    "PREFIX_TUNING": "kv",
    "CARTRIDGE": "kv",
}


@dataclass(frozen=True, slots=True)
class PromptAdapter:
    """The rows of a prompt adapter."""

    kind: Literal["embeddings", "kv"]
    rows: NDArray[np.float32]
    """[virtual tokens, width]"""

    @property
    def digest(self) -> bytes:
        """Identifies kind and rows."""
        state = hashlib.sha256(f"{self.kind} {self.rows.shape}".encode())
        state.update(self.rows.tobytes())
        return state.digest()


def num_virtual_tokens(folder: Path) -> int:
    """The number of virtual tokens that adapter_config.json names. Raises CheckpointError."""
    return _read_config(folder)[1]


def read_prompt_adapter(
    folder: Path, *, max_tokens: int, embedding_width: int, kv_width: int
) -> PromptAdapter:
    """Reads an adapter for a model with rows of these widths; 0: the model takes no such rows.

    Raises CheckpointError for files that are damaged, too large, not supported, or made for another
    model.
    """
    kind, count = _read_config(folder)
    if count > max_tokens:
        raise CheckpointError(
            f"{folder}: num_virtual_tokens ({count}) should be <= max_prompt_adapter_token"
            f"({max_tokens})"
        )
    width = kv_width if kind == "kv" else embedding_width
    if not width:
        raise CheckpointError(
            f"{folder}: prefix tuning must find K and V of the same size in every layer, which "
            "this model does not have"
        )
    with closing(open_adapter(folder)) as store:
        names = sorted(store.names())
        if names != [_TENSOR]:
            raise CheckpointError(
                f"{store.source}: must have one tensor, {_TENSOR}, not {quoted(names[:5])}"
            )
        shape = store.shape(_TENSOR)
        if shape != (count, width):
            raise CheckpointError(
                f"{store.source}: {_TENSOR} must be [{count}, {width}] for {count} virtual tokens "
                f"of this model, not {list(shape)}"
            )
        rows = np.array(store.get(_TENSOR).to_float32())
        store.check()
    if not np.isfinite(rows).all():
        raise CheckpointError(f"{folder}: {_TENSOR} must be finite, but has NaN or infinity")
    return PromptAdapter(kind, rows)


def _read_config(folder: Path) -> tuple[Literal["embeddings", "kv"], int]:
    path = folder / CONFIG_NAME
    if not has_file(path):
        raise CheckpointError(f"{folder} is not an adapter: it has no {CONFIG_NAME}")
    fields = read_json_object(path, max_bytes=_MAX_CONFIG_BYTES)
    kind = fields.get("peft_type")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise CheckpointError(
            f"{path}: peft_type must be one of {', '.join(_KINDS)} for a prompt adapter, not "
            f"{quoted(kind)}"
        )
    count = fields.get("num_virtual_tokens")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise CheckpointError(
            f"{path}: num_virtual_tokens must be a number above 0, got {quoted(count)}"
        )
    if fields.get("num_transformer_submodules") not in (None, 1):
        raise CheckpointError(
            f"{path}: num_transformer_submodules must be 1: models with an encoder and a decoder "
            "are not supported"
        )
    return _KINDS[kind], count
