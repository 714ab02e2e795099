"""A GGUF file as parts that can be changed and written again, so that damage lies behind the
header's own checks: values of other types and sizes, doubled and missing keys and tensors, splits.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, replace
from pathlib import Path

from damaged_gguf import NUMBERS, damaged
from gguf_files import Typed, entry, text, value_bytes

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_FLOATS = (0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf"), float("-inf"), 0.5, 3e38)
_TYPES = (0, 1, 2, 3, 6, 7, 8, 10, 12, 14, 20, 23, 24, 26, 30, 39, 40)
_WORDS = ("", "llama", "gemma4", "none", "yarn", "linear", "\0", "<|im_end|>", "a" * 3000)


@dataclass(frozen=True)
class Entry:
    """A tensor of the table; `sizes`: the fastest first."""

    name: str
    sizes: tuple[int, ...]
    code: int
    offset: int


@dataclass
class Parts:
    """Keys with their values' bytes, type first; the table; the data."""

    keys: list[tuple[str, bytes]]
    entries: list[Entry]
    data: bytes
    num_keys: int | None = None
    """What the header says, if it lies."""

    def written(self) -> bytes:
        count = len(self.keys) if self.num_keys is None else self.num_keys
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.entries), count)
        head += b"".join(text(key) + raw for key, raw in self.keys)
        head += b"".join(entry(e.name, list(e.sizes), e.code, e.offset) for e in self.entries)
        return head + bytes(-len(head) % 32) + self.data


def parts_of(raw: bytes) -> Parts:
    """Of a right file."""
    num_tensors, num_keys = struct.unpack_from("<QQ", raw, 8)
    place = 24
    keys, entries = [], []
    for _ in range(num_keys):
        key, place = _text(raw, place)
        end = _value_end(raw, place)
        keys.append((key, raw[place:end]))
        place = end
    for _ in range(num_tensors):
        name, place = _text(raw, place)
        (dims,) = struct.unpack_from("<I", raw, place)
        *sizes, code, offset = struct.unpack_from(f"<{dims}QIQ", raw, place + 4)
        entries.append(Entry(name, tuple(sizes), code, offset))
        place += 4 + 8 * dims + 12
    return Parts(keys, entries, raw[place + -place % 32 :])


def _text(raw: bytes, place: int) -> tuple[str, int]:
    (size,) = struct.unpack_from("<Q", raw, place)
    return raw[place + 8 : place + 8 + size].decode(), place + 8 + size


def _value_end(raw: bytes, place: int) -> int:
    (code,) = struct.unpack_from("<I", raw, place)
    place += 4
    if code == 8:
        return _text(raw, place)[1]
    if code != 9:
        return place + _SIZES[code]
    code, count = struct.unpack_from("<IQ", raw, place)
    place += 12
    if code != 8:
        return place + count * _SIZES[code]
    for _ in range(count):
        place = _text(raw, place)[1]
    return place


def changed(raw: bytes, generator: random.Random) -> bytes:
    """One to three changes of parts."""
    parts = parts_of(raw)
    for _ in range(generator.choice([1, 1, 2, 3])):
        change = generator.choice(_CHANGES)
        change(parts, generator)
    return parts.written()


def mutated(raw: bytes, header_end: int, generator: random.Random) -> bytes:
    """Damage of any kind: to bytes, or to parts."""
    if generator.random() < 0.4:
        return damaged(raw, header_end, generator)
    return changed(raw, generator)


def write_split(raw: bytes, directory: Path, generator: random.Random) -> Path:
    """The model as two files, whose numbers may lie, and whose bytes may be damaged."""
    parts = parts_of(raw)
    cut = generator.randrange(len(parts.entries) + 1)
    paths = []
    for number, entries in enumerate((parts.entries[:cut], parts.entries[cut:])):
        said = [number, 2, len(parts.entries)]
        if generator.random() < 0.3:
            said[generator.randrange(3)] = generator.choice(NUMBERS) % (1 << 16)
        values = (Typed("u16", said[0]), Typed("u16", said[1] % (1 << 16)), Typed("i32", said[2]))
        names = ("split.no", "split.count", "split.tensors.count")
        keys = [(f"{name}", value_bytes(value)) for name, value in zip(names, values, strict=True)]
        own = parts.keys if number == 0 else []
        half = Parts([*own, *keys], list(entries), parts.data).written()
        if generator.random() < 0.2:
            half = changed(half, generator) if entries and own else half[: len(half) // 2]
        paths.append(directory / f"m-{number + 1:05}-of-00002.gguf")
        paths[-1].write_bytes(half)
    return paths[0]


def _value(generator: random.Random) -> bytes:
    """Any value at all."""
    kind = generator.randrange(7)
    number = generator.choice([*NUMBERS, 2**62, 2**63 - 1])
    match kind:
        case 0:
            return value_bytes(Typed("u64", number))
        case 1:
            return value_bytes(Typed("i32", -(number % 2**31)))
        case 2:
            return value_bytes(generator.choice(_FLOATS))
        case 3:
            return value_bytes(generator.choice(_WORDS))
        case 4:
            return value_bytes(bool(number % 2))
        case 5:
            return value_bytes([number % 2**32] * generator.choice([0, 1, 2, 300]))
        case _:
            return value_bytes([generator.choice(_FLOATS)] * generator.choice([0, 1, 2, 300]))


def _other_value(parts: Parts, generator: random.Random) -> None:
    """Of a key of the architecture, mostly: those are many and mean much."""
    at = generator.randrange(len(parts.keys))
    parts.keys[at] = (parts.keys[at][0], _value(generator))


def _near_value(parts: Parts, generator: random.Random) -> None:
    """A number that is a little wrong."""
    at = generator.randrange(len(parts.keys))
    key, raw = parts.keys[at]
    (code,) = struct.unpack_from("<I", raw)
    if code in (4, 5):
        (number,) = struct.unpack_from("<I", raw, 4)
        number = (number + generator.choice([-1, 1, number, -(number // 2), 1 << 20])) % 2**32
        parts.keys[at] = (key, raw[:4] + struct.pack("<I", number))
    elif code == 6:
        parts.keys[at] = (key, value_bytes(generator.choice(_FLOATS)))


def _items(parts: Parts, generator: random.Random) -> None:
    """A list with more, fewer or other items."""
    at = generator.randrange(len(parts.keys))
    key, raw = parts.keys[at]
    code, item, count = struct.unpack_from("<IIQ", raw[:16].ljust(16, b"\0"))
    if code != 9 or item not in _SIZES:
        return
    size = _SIZES[item]
    body = bytearray(raw[16:])
    if generator.random() < 0.5 and body:
        body = body[: size * generator.randrange(count)]
    elif body:
        place = size * generator.randrange(count)
        body[place : place + size] = generator.randbytes(size)
    count = len(body) // size
    parts.keys[at] = (key, struct.pack("<IIQ", 9, item, count) + bytes(body))


def _no_key(parts: Parts, generator: random.Random) -> None:
    if len(parts.keys) > 1:
        del parts.keys[generator.randrange(len(parts.keys))]


def _double_key(parts: Parts, generator: random.Random) -> None:
    parts.keys.append(generator.choice(parts.keys))


def _other_key(parts: Parts, generator: random.Random) -> None:
    """A key that this architecture does not have, with a name of another one."""
    name = generator.choice([
        "expert_count", "nextn_predict_layers", "rope.scaling.type", "rope.scaling.factor",
        "attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa",
        "attention.key_length", "attention.value_length", "rope.dimension_count",
        "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor", "attention.scale",
        "rope.scaling.original_context_length", "leading_dense_block_count",
    ])  # fmt: skip
    architecture = next((k.split(".")[0] for k, _ in parts.keys if k.count(".")
                         and k.split(".")[0] not in ("general", "tokenizer")), "llama")  # fmt: skip
    parts.keys.append((f"{architecture}.{name}", _value(generator)))


def _lying_count(parts: Parts, generator: random.Random) -> None:
    parts.num_keys = generator.choice([0, 1, len(parts.keys) - 1, len(parts.keys) + 1, 2**32])


def _other_entry(parts: Parts, generator: random.Random) -> None:
    """A tensor of another type, shape, place or name."""
    if not parts.entries:
        return
    at = generator.randrange(len(parts.entries))
    one, other = parts.entries[at], generator.choice(parts.entries)
    sizes = list(one.sizes)
    axis = generator.randrange(len(sizes) or 1)
    match generator.randrange(8):
        case 0:
            one = replace(one, code=generator.choice(_TYPES))
        case 1:
            one = replace(one, sizes=tuple(reversed(sizes)))
        case 2 if sizes:
            sizes[axis] = generator.choice([1, 32, 64, 256, sizes[axis] * 2, sizes[axis] // 2, 7])
            one = replace(one, sizes=tuple(sizes))
        case 3:
            one = replace(one, offset=other.offset)
        case 4:
            one = replace(one, name=other.name)
        case 5:
            one = replace(one, sizes=(*sizes, 1)[-4:])
        case 6 if len(sizes) > 1:
            one = replace(one, sizes=(sizes[0] * sizes[1], *sizes[2:]))
        case _:
            number = generator.choice([0, 1, 5, 9999])
            one = replace(one, name=one.name.replace(".0.", f".{number}."))
    parts.entries[at] = one


def _no_entry(parts: Parts, generator: random.Random) -> None:
    if parts.entries:
        del parts.entries[generator.randrange(len(parts.entries))]


def _double_entry(parts: Parts, generator: random.Random) -> None:
    if parts.entries:
        one = generator.choice(parts.entries)
        name = generator.choice([one.name, one.name + "x", one.name.replace("weight", "bias")])
        parts.entries.append(replace(one, name=name))


def _data(parts: Parts, generator: random.Random) -> None:
    """Numbers that are none, in the data."""
    if parts.data:
        data = bytearray(parts.data)
        place = generator.randrange(len(data))
        data[place : place + 64] = generator.choice([b"\xff", b"\0", b"\x7f"]) * 64
        parts.data = bytes(data[: len(parts.data)])


_CHANGES = (
    _other_value, _other_value, _near_value, _near_value, _items, _no_key, _double_key, _other_key,
    _lying_count, _other_entry, _other_entry, _other_entry, _no_entry, _double_entry, _data,
)  # fmt: skip
