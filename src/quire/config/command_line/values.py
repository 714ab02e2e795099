"""Reads the words of options: counts, sizes, JSON. Each raises argparse.ArgumentTypeError."""

from __future__ import annotations

import argparse
import json
import re
from fractions import Fraction
from typing import Any

from quire.errors import quoted
from quire.units import parse_bytes

_COUNT = re.compile(r"(-?[0-9]{1,40}(?:\.[0-9]{1,40})?)([kmgtKMGT]?)")
_PART = r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(ms|[smhdw])"
_DURATION = re.compile(rf"[0-9]{{1,12}}(?:\.[0-9]{{1,9}})?|(?:{_PART}){{1,8}}")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_count(text: str) -> int:
    """A count: `8192`, `8k` (8,000), `8K` (8,192), `1.5m`. A part of one that a decimal suffix
    leaves is dropped, as in vLLM.

    Raises argparse.ArgumentTypeError for anything else.
    """
    match = _COUNT.fullmatch(text.strip().replace("_", ""))
    if match is None:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a number; write 2048, 2k or 2K")
    number, suffix = match.groups()
    value = Fraction(number) * {**_DECIMAL, **_BINARY}.get(suffix, 1)
    if value.denominator != 1 and suffix not in _DECIMAL:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a whole number")
    return int(value)


def parse_size(text: str) -> int:
    """Bytes: a count, or `4GiB`, `500MB`."""
    try:
        return parse_count(text)
    except argparse.ArgumentTypeError:
        try:
            return parse_bytes(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None


def parse_duration(text: str) -> float:
    """Seconds: `90`, `1.5h`, `7d`, or parts that are added up, as in `1h30m`."""
    text = text.strip().lower()
    if _DURATION.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f"{quoted(text)} must be a time, such as 90s, 30m, 12h or 7d"
        )
    parts = re.findall(_PART, text)
    return sum(float(number) * _SECONDS[unit] for number, unit in parts) if parts else float(text)


def parse_json(text: str) -> Any:
    """An option whose value is JSON, e.g. `--hf-overrides '{"rope_theta": 1e6}'`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not JSON: {error}") from None


def parse_length(text: str) -> int:
    """A count, or `auto`, which is -1."""
    return -1 if text.strip().lower() == "auto" else parse_count(text)


def parse_truth(text: str) -> bool:
    """`true` or `false`."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{quoted(text)} is neither true nor false")
    return text.lower() == "true"


def parse_loose(text: str) -> Any:
    """A value of unknown type: JSON if it is valid JSON, otherwise text; `None` is None."""
    if text == "None":
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
