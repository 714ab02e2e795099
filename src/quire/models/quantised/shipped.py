"""`Shipped`: what the quantised linears of a checkpoint have in common, and the checks of its keys.

Made by `held` and the modules beside it, one for each kind of `quantization_config`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from quire.errors import UnsupportedModelError
from quire.program.values import GroupedFormat

if TYPE_CHECKING:
    from quire.models.quantised.expanded import Expanded

Config = Mapping[str, Any]
Layout = Literal[
    "awq", "gptq", "pack-quantized", "int-quantized", "nvfp4-pack", "mxfp4", "fp8", "bitsandbytes"
]
"""In which tensors a matrix is stored."""

WHOLE_ROW_GROUP = 128
"""Rows with one scale are held in groups of this size, which repeat it."""
GROUPS = (16, 32, 64, 128)
_WORKS = (
    "AWQ and GPTQ of 4 bits, compressed-tensors of 4 bits (pack-quantized, nvfp4-pack-quantized) "
    "or 8 bits (int-quantized, float-quantized), FP8 and bitsandbytes can be loaded"
)


@dataclass(frozen=True, slots=True)
class Shipped:
    """What all quantised linears of a checkpoint have in common."""

    method: str
    """`quant_method` of the checkpoint."""
    layout: Layout
    format: GroupedFormat
    group_size: int | None
    """As the checkpoint has it; None: one scale for each row."""
    ignored: tuple[str, ...]
    """Modules that are not quantised: names, their ends, or after "re:" a regular expression."""
    zero_offset: int = 0
    """What is added to a stored zero: 1 in GPTQ's first format."""
    quantises_head: bool = False
    expanded: Expanded | None = None
    """How the same tensors are read as plain numbers, where they can be."""
    plain: frozenset[str] = frozenset()
    """Matrices that the checkpoint holds as plain numbers, though nothing above says so."""

    def format_of(self, name: str, depth: int) -> GroupedFormat | None:
        """Of the matrix of this name ("...q_proj.weight") [N, depth]; None: it is not held so."""
        if name in self.plain or not self.fits(depth):
            return None
        return self.format if self._holds(name) else None

    def fits(self, depth: int) -> bool:
        """Whether groups of rows of this length are groups of the checkpoint. Those of bitsandbytes
        go on from row to row."""
        return self.layout != "bitsandbytes" or depth % self.format.group == 0

    def _holds(self, name: str) -> bool:
        module = name.removesuffix(".weight")
        if module.endswith(("embed_tokens", "wte", "embed_in")):
            return False
        if module.split(".")[-1] == "lm_head" and not self.quantises_head:
            return False
        return not any(_matches(pattern, module, self.method) for pattern in self.ignored)


def _matches(pattern: str, module: str, method: str) -> bool:
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], module) is not None
        except re.error as error:
            raise unsupported("ignore", pattern) from error
    if method == "compressed-tensors":
        return module == pattern or module.endswith(f".{pattern}")
    # Whole names, as in transformers: "gate" is the router, not a gate_proj.
    return f".{pattern}." in f".{module}." or module.endswith(pattern)


def with_zeros(group: int | None) -> GroupedFormat:
    """Codes of 4 bits with a zero for each group."""
    return GroupedFormat("u4", group or WHOLE_ROW_GROUP, has_zeros=True)


def fp8_format(block: tuple[int, int] | None) -> GroupedFormat | None:
    """For scales of these blocks, or of rows or all; None: their columns make no groups."""
    if block is None:
        return GroupedFormat("e4m3", WHOLE_ROW_GROUP)
    group = next((size for size in reversed(GROUPS) if block[1] % size == 0), None)
    return None if group is None else GroupedFormat("e4m3", group)


def group_of(size: object) -> int | None:
    """None for -1: the whole row. Raises UnsupportedModelError."""
    if size == -1:
        return None
    if isinstance(size, int) and size in GROUPS:
        return size
    raise UnsupportedModelError(
        f"quantization_config: group_size {size!r} cannot be held; "
        f"{', '.join(map(str, GROUPS))} and -1 can"
    )


def names_of(names: object, key: str) -> tuple[str, ...]:
    """A list of modules. Raises UnsupportedModelError."""
    if names is None:
        return ()
    if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
        return tuple(names)
    raise unsupported(key, names)


def check_is(key: str, value: object, wanted: object) -> None:
    """Raises UnsupportedModelError."""
    if value != wanted:
        raise unsupported(key, value)


def unsupported(key: str, value: object) -> UnsupportedModelError:
    """For a value of `quantization_config` that is not known."""
    shown = repr(value)
    shown = shown if len(shown) <= 100 else f"{shown[:100]}..."
    return UnsupportedModelError(
        f"config.json: quantization_config with {key} {shown} cannot be loaded; {_WORKS}; "
        "or use the unquantised checkpoint"
    )
