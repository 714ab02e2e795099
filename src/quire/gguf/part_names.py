"""Names of the files that a GGUF model is split into: `name-00001-of-00003.gguf` and so on."""

from __future__ import annotations

import re
from typing import NamedTuple

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})")


class PartName(NamedTuple):
    """The parts of such a name."""

    stem: str
    """The beginning, which all files of the model share."""
    number: int
    """From 1."""
    total: int
    """Files of the model."""


def part_of(name: str) -> PartName | None:
    """The parts of a name without `.gguf`; None: the model is not split."""
    match = _PART.fullmatch(name)
    return PartName(match[1], int(match[2]), int(match[3])) if match else None


def stem_of(name: str) -> str:
    """The name without the number of a part."""
    part = part_of(name)
    return name if part is None else part.stem


def is_first(name: str) -> bool:
    """Whether the file of this name is a model's only one, or its first."""
    part = part_of(name)
    return part is None or part.number == 1
