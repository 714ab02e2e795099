"""`Shipped`: the common properties of a checkpoint's quantised linears, and checks of its keys.

`held` and its neighbouring modules create it, one function per kind of `quantization_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from quire.config.checkpoint.expressions import Expressions
from quire.errors import UnsupportedModelError
from quire.models.quantised.expanded import Expanded, Layout
from quire.program.values import GroupedFormat

Config = Mapping[str, Any]

WHOLE_ROW_GROUP = 128
"""Group size for rows with one scale, which is repeated in each group."""
GROUPS = (16, 32, 64, 128)
_WORKS = (
    "AWQ of 4 bits, GPTQ of 2, 3, 4 or 8 bits, auto-round, compressed-tensors of 4 or 8 bits, FP8, "
    "ModelOpt (FP8, NVFP4), Quark, bitsandbytes, HQQ and torchao can be loaded"
)


@dataclass(frozen=True, slots=True)
class Shipped:
    """Common properties of all quantised linears of a checkpoint."""

    method: str
    """`quant_method` of the checkpoint."""
    layout: Layout | Literal["mxfp4"]
    """"mxfp4": one tensor with a layer's experts, which `weights/quantised/experts.py` reads."""
    format: GroupedFormat
    group_size: int | None
    """Group size in the checkpoint; None: one scale per row."""
    ignored: tuple[str, ...]
    """Modules that are not quantised: names, name endings, or regular expressions after "re:"."""
    zero_offset: int = 0
    """Offset added to a stored zero: 1 in GPTQ's first format."""
    quantises_head: bool = False
    expanded: Expanded | None = None
    """Layout in which the same tensors are read as plain numbers, if that is possible."""
    plain: frozenset[str] = frozenset()
    """Matrices that are not stored in this format, although the rules above include them."""
    targets: tuple[str, ...] = ("Linear",)
    """Modules that are quantised: "Linear" stands for all; others as in `ignored`."""
    _expressions: Expressions = field(
        default_factory=lambda: Expressions("config.json: quantization_config"),
        init=False, repr=False, compare=False,
    )  # fmt: skip

    @property
    def what(self) -> str:
        """Description of the quantisation for users."""
        return self.method if self.expanded is None else self.expanded.what

    def format_of(self, name: str, depth: int) -> GroupedFormat | None:
        """Return the format of the matrix `name` ("...q_proj.weight"), [N, depth]; None if it is
        not kept."""
        if name in self.plain or not self.fits(depth):
            return None
        return self.format if self.is_target(name) and self._holds(name) else None

    def fits(self, depth: int) -> bool:
        """Whether rows of this length consist of whole groups. Groups of bitsandbytes continue
        across rows."""
        return self.layout != "bitsandbytes" or depth % self.format.group == 0

    def has_groups(self, num_groups: int, depth: int) -> bool:
        """Whether `num_groups` scales match a row of this length."""
        return num_groups == (1 if self.group_size is None else -(-depth // self.group_size))

    def is_target(self, name: str) -> bool:
        """Whether the checkpoint's rules apply this format to the matrix `name`."""
        module = name.removesuffix(".weight")
        return any(t == "Linear" or self._matches(t, module) for t in self.targets)

    def _holds(self, name: str) -> bool:
        module = name.removesuffix(".weight")
        if module.endswith(("embed_tokens", "wte", "embed_in")):
            return False
        if module.split(".")[-1] == "lm_head" and not self.quantises_head:
            return False
        return not any(self._matches(pattern, module) for pattern in self.ignored)

    def _matches(self, pattern: str, module: str) -> bool:
        if pattern.startswith("re:"):
            return self._expressions.match(pattern[3:], module)
        if self.method == "compressed-tensors":
            return module == pattern or module.endswith(f".{pattern}")
        # Whole names, as in transformers: "gate" is the router, not a gate_proj.
        return f".{pattern}." in f".{module}." or module.endswith(pattern)


def ordered(shipped: Shipped) -> Shipped | Expanded:
    """Return the format for a checkpoint whose groups have non-adjacent columns. 4-bit codes are
    kept, others are expanded."""
    if shipped.format.code_bits == 4 or shipped.expanded is None:
        return replace(shipped, format=replace(shipped.format, has_order=True))
    return shipped.expanded


def with_zeros(group: int | None) -> GroupedFormat:
    """Return the format of 4-bit codes with a zero per group."""
    return GroupedFormat("u4", group or WHOLE_ROW_GROUP, has_zeros=True)


def fp8_format(block: tuple[int, int] | None) -> GroupedFormat | None:
    """Return the format for scales per block, row or matrix; None if the blocks' columns cannot be
    groups."""
    if block is None:
        return GroupedFormat("e4m3", WHOLE_ROW_GROUP)
    group = next((size for size in reversed(GROUPS) if block[1] % size == 0), None)
    return None if group is None else GroupedFormat("e4m3", group)


def group_of(size: object) -> int | None:
    """Return the group size; None for -1, the whole row. Raises UnsupportedModelError for invalid
    sizes."""
    if size == -1:
        return None
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    raise UnsupportedModelError(
        f"quantization_config: group_size must be -1 or a positive number such as 128, got {size!r}"
    )


def is_held_group(group: int | None) -> bool:
    """Whether kernels support this group size; None: one scale per row."""
    return group is None or group in GROUPS


def names_of(names: object, key: str) -> tuple[str, ...]:
    """Return a list of modules. Raises UnsupportedModelError if it is not one."""
    if names is None:
        return ()
    if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
        return tuple(names)
    raise unsupported(key, names)


def check_is(key: str, value: object, wanted: object) -> None:
    """Raises UnsupportedModelError unless the value equals `wanted`."""
    if value != wanted:
        raise unsupported(key, value)


def check_in(key: str, value: object, known: tuple[object, ...]) -> None:
    """Raises UnsupportedModelError unless the value is in `known`."""
    if value not in known:
        raise unsupported(key, value)


def unsupported(key: str, value: object) -> UnsupportedModelError:
    """Return the error for an unsupported value of `quantization_config`."""
    shown = repr(value)
    shown = shown if len(shown) <= 100 else f"{shown[:100]}..."
    return UnsupportedModelError(
        f"config.json: quantization_config with {key} {shown} cannot be loaded; {_WORKS}; "
        "or use the unquantised checkpoint"
    )
