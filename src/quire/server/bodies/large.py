"""Decodes large JSON bodies: counts their values first, and decodes long lists in pieces.

Decoding holds the GIL, and its objects take many times the memory of their text. So the values of
each field are counted and limited first. Only lists of token ids may be long: they are decoded
piece by piece. Called by `read_body`, on a thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.errors import RequestError
from quire.frontend.inputs.refusals import prompt_too_long
from quire.server.bodies.json_scan import (
    PIECE_BYTES,
    JsonField,
    count_byte,
    fault_of,
    scan_object,
)
from quire.server.bodies.lax_values import Body, Decoded, decode_lax_value
from quire.server.requests.fields import PROMPT_KINDS, TokenId

_TEXT_FIELDS = {
    "prompt", "messages", "system", "documents", "tokens", "input", "instructions",
    "texts", "inputs", "instances", "content", "queries", "items", "data_1", "data_2",
    "text_1", "text_2",
}  # fmt: skip
_BLANK = b" \t\n\r"
_NOT_BLANK = re.compile(rb"[^ \t\n\r]")
_token_ids = msgspec.json.Decoder(list[TokenId])
_texts = msgspec.json.Decoder(list[str])


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits of a body."""

    max_json_values: int
    """Most values of all fields together, without lists of token ids."""
    max_field_bytes: int
    """Most bytes of a field other than the prompt."""
    max_prompts: int
    max_model_len: int


def decode_large(
    data: bytes, kind: type[Body], decode: Callable[[bytes], Decoded[Body]], limits: BodyLimits
) -> Decoded[Body]:
    """The body as `kind`, by `decode`. Raises RequestError for a field that is too large, and
    the errors of `decode`."""
    first = _NOT_BLANK.search(data)
    if first is None or first.group() != b"{":
        return decode(data)  # which refuses its first character
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    scanned = scan_object(data)
    found = {field.name: field for field in scanned}
    fields = {name: field for name, field in found.items() if name in known}
    apart: str | None = getattr(kind, "token_ids_field", None)
    ids: Any = None
    truncated = fields.get("truncate_prompt_tokens")
    if truncated is not None and _value(data, truncated) != b"null":
        apart = None  # a prompt may be longer than the context: its ids are values like others
    replaced = {}
    if apart is not None and apart in fields and _is_list(data, fields[apart]):
        field = fields[apart]
        value, num_items = _value(data, field), field.num_values - 1
        is_flat = apart != "prompt"
        ids = (
            _ids(value, num_items, apart, limits) if is_flat else _prompt(value, num_items, limits)
        )
        replaced[apart] = b"[]"
    _check_sizes([fields[name] for name in fields if name not in replaced], limits)
    if len(fields) < len(scanned) or replaced:  # otherwise a large body need not be copied
        texts = {name: replaced.get(name) or _value(data, fields[name]) for name in fields}
        parts = [b'"%b":%b' % (name.encode(), text) for name, text in texts.items()]
        decoded = decode(b"{" + b",".join(parts) + b"}")
    else:
        decoded = decode(data)
    if apart is not None and ids is not None:
        setattr(decoded.body, apart, ids)
    for name, field in found.items():
        if name not in known and _value(data, field) != b"null":
            decoded.unknown[name] = None
    return decoded


def _value(data: bytes, field: JsonField) -> bytes:
    return data[field.begin : field.end].strip(_BLANK)


def _is_list(data: bytes, field: JsonField) -> bool:
    first = _NOT_BLANK.search(data, field.begin, field.end)
    return first is not None and first.group() == b"["


def _check_sizes(fields: Iterable[JsonField], limits: BodyLimits) -> None:
    """From the smallest field on, so that the largest is named."""
    num_values = 0
    for field in sorted(fields, key=lambda field: field.num_values):
        num_bytes = field.end - field.begin
        if num_bytes > limits.max_field_bytes and field.name not in _TEXT_FIELDS:
            raise RequestError(
                f"{field.name} has {num_bytes} bytes, more than this server allows in a field "
                f"that carries no prompt (max_field_bytes {limits.max_field_bytes}).",
                parameter=field.name,
                value=num_bytes,
            )
        num_values += field.num_values
        if num_values > limits.max_json_values:
            raise RequestError(
                f"{field.name}: with it the request holds {num_values} JSON values, more than "
                f"this server allows (max_json_values {limits.max_json_values}).",
                parameter=field.name,
                value=num_values,
            )


# --- lists of token ids


def _prompt(
    raw: bytes, num_items: int, limits: BodyLimits
) -> list[str] | list[int] | list[list[int]]:
    """A completion's prompts, given as a list that holds so many values."""
    first = raw[1:].lstrip(_BLANK)[:1]
    if first == b'"':
        _check_num_prompts(num_items, limits.max_prompts)
        try:
            return _texts.decode(raw)
        except msgspec.ValidationError:
            raise RequestError(PROMPT_KINDS, parameter="prompt") from None
        except msgspec.DecodeError:
            raise msgspec.DecodeError(f"{fault_of(raw)} - at `$.prompt`") from None
    if first == b"[":
        return _id_lists(raw, limits)
    return _ids(raw, num_items, "prompt", limits)


def _id_lists(raw: bytes, limits: BodyLimits) -> list[list[int]]:
    _check_num_prompts(count_byte(raw, b"]") - 1, limits.max_prompts)
    *lists, end = raw[1:-1].split(b"]")
    found = []
    for index, text in enumerate(lists):
        text = text.strip(_BLANK)
        is_apart = index == 0 or text.startswith(b",")
        text = text[1 if index else 0 :].lstrip(_BLANK)
        if not is_apart or not text.startswith(b"["):
            raise RequestError(PROMPT_KINDS, parameter="prompt")
        found.append(_ids(text + b"]", count_byte(text, b",") + 1, "prompt", limits))
    if end.strip(_BLANK):
        raise RequestError(PROMPT_KINDS, parameter="prompt")
    return found


def _check_num_prompts(count: int, max_prompts: int) -> None:
    if count > max_prompts:
        raise RequestError(
            f"{count} prompts are more than this server allows in one request "
            f"(max_prompts {max_prompts}).",
            parameter="prompt",
            value=count,
        )


def _ids(raw: bytes, count: int, name: str, limits: BodyLimits) -> list[int]:
    """A flat list of `count` token ids, decoded in pieces that end at a comma."""
    if count > limits.max_model_len:
        if name != "tokens":
            raise prompt_too_long(count, limits.max_model_len)
        raise RequestError(
            f"{name} has {count} token ids, more than max_model_len {limits.max_model_len}.",
            parameter=name,
            value=count,
        )
    ids: list[int] = []
    inner, begin = raw[1:-1], 0
    while begin < len(inner):
        end = inner.find(b",", begin + PIECE_BYTES)
        end = len(inner) if end < 0 else end
        ids += _decoded_ids(b"[" + inner[begin:end] + b"]", name)
        begin = end + 1
    return ids


def _decoded_ids(piece: bytes, name: str) -> list[int]:
    with suppress(msgspec.DecodeError):
        return _token_ids.decode(piece)
    with suppress(msgspec.DecodeError):
        found: list[int] = decode_lax_value(piece, list[TokenId])
        return found
    kinds = f"{PROMPT_KINDS}; " if name == "prompt" else ""
    raise RequestError(
        f"{kinds}{name} must hold token ids, whole numbers from 0 to 2147483647", parameter=name
    )
