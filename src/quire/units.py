"""Arithmetic on counts and bytes. Imports nothing of Quire."""

from __future__ import annotations

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB

_SUFFIXES = {
    "": 1, "b": 1,
    "k": 1000, "kb": 1000, "m": 1000**2, "mb": 1000**2, "g": 1000**3, "gb": 1000**3,
    "ki": KiB, "kib": KiB, "mi": MiB, "mib": MiB, "gi": GiB, "gib": GiB,
}  # fmt: skip


def ceil_div(value: int, divisor: int) -> int:
    """`value / divisor`, rounded up. `divisor` is positive."""
    return -(-value // divisor)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`."""
    return ceil_div(value, multiple) * multiple


def format_bytes(count: int | float) -> str:
    """Bytes as text with a unit: `1.50 GiB`, `12.0 MiB`, `512 B`."""
    if count >= GiB:
        return f"{count / GiB:.2f} GiB"
    if count >= MiB:
        return f"{count / MiB:.1f} MiB"
    if count >= KiB:
        return f"{count / KiB:.1f} KiB"
    return f"{int(count)} B"


def parse_bytes(text: str | int) -> int:
    """`"4GiB"`, `"500MB"`, `"1.5g"` or a plain count, in bytes. Raises ValueError otherwise."""
    if isinstance(text, int):
        return text
    stripped = text.strip().lower()
    number = stripped.rstrip("abcdefghijklmnopqrstuvwxyz ")
    suffix = stripped[len(number) :].strip()
    try:
        return int(float(number) * _SUFFIXES[suffix])
    except (KeyError, ValueError, OverflowError):
        raise ValueError(
            f"{text[:80]!r} is not a size; write it like 4GiB, 500MB or 1073741824"
        ) from None
