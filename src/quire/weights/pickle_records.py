"""Reads the pickle of a PyTorch state dict as data, without executing anything.

Called by `torch_bin`. The pickle module is not used. The interpreter supports containers, numbers,
strings, and the names of a state dict (`_KNOWN_NAMES`); every other name and opcode is refused.
Source: the opcode table of CPython's Lib/pickletools.py; torch/_utils.py for the records.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quire.errors import CheckpointError

MAX_STACK = 1 << 20
MAX_MEMO = 1 << 20

STORAGE_DTYPES = {
    "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "DoubleStorage": "F64", "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16",
    "CharStorage": "I8", "ByteStorage": "U8", "BoolStorage": "BOOL",
}  # fmt: skip
"""torch's storage classes to the dtype names used here."""


@dataclass(frozen=True, slots=True)
class Name:
    """A global that the pickle refers to, as text `module.name`. It is never imported."""

    path: str


@dataclass(frozen=True, slots=True)
class StorageRecord:
    """A persistent id: `num_items` numbers of `dtype`, stored under `key` outside the pickle."""

    dtype: str
    key: str
    num_items: int


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A tensor as torch rebuilds it: a strided view into a storage. Counts and strides in items.

    Every size is a non-negative int. Whether the view is inside the storage is not checked here.
    """

    storage: StorageRecord
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_pickle(data: bytes, start: int, source: str) -> tuple[Any, int]:
    """The value of the pickle at `start`, and the offset just after it.

    Raises CheckpointError, naming `source`, for anything that a state dict cannot hold.
    """
    reader = _Reader(data, start, source)
    try:
        return reader.run(), reader.position
    except _RefusedError as refusal:
        raise CheckpointError(
            f"{source}: {refusal} (byte {reader.opcode_at} of the pickle); nothing was executed"
        ) from None


class _RefusedError(Exception):
    """Why a pickle is not a state dict; `read_pickle` adds the offset and raises
    CheckpointError."""


_MARK = object()


class _Reader:
    """Interprets one stream of opcodes. Invariant: stack and memo stay within their limits."""

    def __init__(self, data: bytes, start: int, source: str) -> None:
        self.position = start
        self.opcode_at = start
        self._data = data
        self._source = source
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        while True:
            self.opcode_at = self.position
            code = self.take(1)[0]
            if code == _STOP:
                return self.pop()
            handler = _HANDLERS.get(code)
            if handler is None:
                raise _RefusedError(f"pickle opcode {chr(code)!r} has no place in a state dict")
            handler(self)

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self._data):
            raise _RefusedError("the pickle ends early")
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def line(self) -> str:
        end = self._data.find(b"\n", self.position, self.position + 1024)
        if end < 0:
            raise _RefusedError("a name must end with a line feed")
        raw = self.take(end - self.position)
        self.position += 1
        return raw.decode("ascii", "replace")

    def text(self, layout: str) -> str:
        try:
            return self.take(self.number(layout)).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise _RefusedError("a string is not UTF-8") from None

    def push(self, value: Any) -> None:
        if len(self._stack) >= MAX_STACK:
            raise _RefusedError(f"the stack grows beyond {MAX_STACK} entries")
        self._stack.append(value)

    def pop(self) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            raise _RefusedError("an opcode needs a value, but the stack is empty")
        return self._stack.pop()

    def pop_to_mark(self) -> list[Any]:
        for index in range(len(self._stack) - 1, -1, -1):
            if self._stack[index] is _MARK:
                items = self._stack[index + 1 :]
                del self._stack[index:]
                return items
        raise _RefusedError("an opcode needs a mark, but the stack has none")

    def memoize(self, key: int) -> None:
        if len(self._memo) >= MAX_MEMO:
            raise _RefusedError(f"the memo grows beyond {MAX_MEMO} entries")
        value = self.pop()
        self._memo[key] = value
        self.push(value)

    def memoize_next(self) -> None:
        self.memoize(len(self._memo))

    def recall(self, key: int) -> None:
        if key not in self._memo:
            raise _RefusedError("the memo has no such entry")
        self.push(self._memo[key])

    def push_tuple(self, count: int) -> None:
        items = [self.pop() for _ in range(count)]
        self.push(tuple(reversed(items)))

    def append(self, values: list[Any]) -> None:
        target = self.pop()
        if not isinstance(target, list):
            raise _RefusedError(f"items are appended to {_kind(target)}")
        target.extend(values)
        self.push(target)

    def set_items(self, flat: list[Any]) -> None:
        target = self.pop()
        if not isinstance(target, dict) or len(flat) % 2:
            raise _RefusedError(f"items are set on {_kind(target)}")
        for key, value in zip(flat[::2], flat[1::2], strict=True):
            if not isinstance(key, (str, int)):
                raise _RefusedError(f"{_kind(key)} is used as a key")
            target[key] = value
        self.push(target)

    def set_item(self) -> None:
        value = self.pop()
        self.set_items([self.pop(), value])

    def set_state(self) -> None:
        """BUILD: sets attributes. They are dropped: a state dict has only `_metadata`, which holds
        no weights."""
        state, target = self.pop(), self.pop()
        if not isinstance(target, dict) or not isinstance(state, dict):
            raise _RefusedError(f"BUILD sets attributes of {_kind(target)}")
        self.push(target)

    def push_name(self, module: Any, name: Any) -> None:
        path = f"{module}.{name}"
        if not isinstance(module, str) or not isinstance(name, str) or path not in _KNOWN_NAMES:
            raise _RefusedError(
                f"the pickle asks for {path[:200]!r}, which a state dict does not need"
            )
        self.push(Name(path))

    def push_stack_name(self) -> None:
        name = self.pop()
        self.push_name(self.pop(), name)

    def push_storage(self) -> None:
        """BINPERSID: ('storage', class, key, location, number of items[, view])."""
        entry = self.pop()
        if not isinstance(entry, tuple) or len(entry) not in (5, 6) or entry[0] != "storage":
            raise _RefusedError("a persistent id must be a storage")
        kind, key, num_items = entry[1], entry[2], entry[4]
        if len(entry) == 6 and entry[5] is not None:
            raise _RefusedError("a storage must not be a view of another storage")
        storage = kind.path.rpartition(".")[2] if isinstance(kind, Name) else ""
        if storage not in STORAGE_DTYPES or not isinstance(key, str) or not _is_size(num_items):
            raise _RefusedError("a persistent id must have a storage class, a key and a size")
        self.push(StorageRecord(STORAGE_DTYPES[storage], key, num_items))

    def reduce(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Name) or not isinstance(arguments, tuple):
            raise _RefusedError(f"REDUCE calls {_kind(function)}")
        make = _CALLS.get(function.path)
        if make is None:
            raise _RefusedError(f"REDUCE calls {function.path!r}, which cannot be called")
        self.push(make(arguments))


def _new_dict(arguments: tuple[Any, ...]) -> dict[Any, Any]:
    if arguments:
        raise _RefusedError("an OrderedDict must be created without arguments")
    return {}


def _new_size(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    if len(arguments) != 1 or not _are_sizes(arguments[0]):
        raise _RefusedError("torch.Size must be created from a tuple of sizes")
    return tuple(arguments[0])


def _new_tensor(arguments: tuple[Any, ...]) -> TensorRecord:
    """torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks...)."""
    if not 4 <= len(arguments) <= 7:
        raise _RefusedError(f"a tensor must have 4 to 7 arguments, not {len(arguments)}")
    storage, offset, shape, strides = arguments[:4]
    if not isinstance(storage, StorageRecord) or not _is_size(offset):
        raise _RefusedError("a tensor must have a storage and an offset")
    if not _are_sizes(shape) or not _are_sizes(strides) or len(shape) != len(strides):
        raise _RefusedError("a tensor must have a shape and strides of the same length")
    return TensorRecord(storage, offset, tuple(shape), tuple(strides))


def _new_parameter(arguments: tuple[Any, ...]) -> TensorRecord:
    if not arguments or not isinstance(arguments[0], TensorRecord):
        raise _RefusedError("a parameter must be created from a tensor")
    return arguments[0]


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _are_sizes(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) <= 32 and all(map(_is_size, value))


def _kind(value: Any) -> str:
    return repr(value.path) if isinstance(value, Name) else f"a {type(value).__name__}"


_CALLS: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "collections.OrderedDict": _new_dict,
    "torch.Size": _new_size,
    "torch._utils._rebuild_tensor": _new_tensor,
    "torch._utils._rebuild_tensor_v2": _new_tensor,
    "torch._utils._rebuild_parameter": _new_parameter,
}
_KNOWN_NAMES = {
    *_CALLS,
    *(f"torch.{name}" for name in STORAGE_DTYPES),
    *(f"torch.storage.{name}" for name in STORAGE_DTYPES),
}

_STOP = ord(".")
_HANDLERS: dict[int, Callable[[_Reader], None]] = {
    ord(opcode): handler
    for opcode, handler in {
        "\x80": lambda r: _check_protocol(r.number("<B")),
        "\x95": lambda r: r.take(8),  # FRAME: a hint for buffering
        "(": lambda r: r.push(_MARK),
        "0": lambda r: r.pop(),
        "N": lambda r: r.push(None),
        "\x88": lambda r: r.push(True),
        "\x89": lambda r: r.push(False),
        "J": lambda r: r.push(r.number("<i")),
        "K": lambda r: r.push(r.number("<B")),
        "M": lambda r: r.push(r.number("<H")),
        "\x8a": lambda r: r.push(int.from_bytes(r.take(r.number("<B")), "little", signed=True)),
        "G": lambda r: r.push(r.number(">d")),
        "X": lambda r: r.push(r.text("<I")),
        "\x8c": lambda r: r.push(r.text("<B")),
        "\x8d": lambda r: r.push(r.text("<Q")),
        "}": lambda r: r.push({}),
        "]": lambda r: r.push([]),
        ")": lambda r: r.push(()),
        "\x85": lambda r: r.push_tuple(1),
        "\x86": lambda r: r.push_tuple(2),
        "\x87": lambda r: r.push_tuple(3),
        "t": lambda r: r.push(tuple(r.pop_to_mark())),
        "a": lambda r: r.append([r.pop()]),
        "e": lambda r: r.append(r.pop_to_mark()),
        "s": _Reader.set_item,
        "u": lambda r: r.set_items(r.pop_to_mark()),
        "q": lambda r: r.memoize(r.number("<B")),
        "r": lambda r: r.memoize(r.number("<I")),
        "\x94": _Reader.memoize_next,
        "h": lambda r: r.recall(r.number("<B")),
        "j": lambda r: r.recall(r.number("<I")),
        "c": lambda r: r.push_name(r.line(), r.line()),
        "\x93": _Reader.push_stack_name,
        "Q": _Reader.push_storage,
        "R": _Reader.reduce,
        "b": _Reader.set_state,
    }.items()
}


def _check_protocol(version: int) -> None:
    if version > 5:
        raise _RefusedError(f"pickle protocol must be at most 5, not {version}")
