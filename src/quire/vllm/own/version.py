"""The version of vLLM that this package emulates, for `vllm.__version__` and package tools."""

from __future__ import annotations

from importlib.metadata import Distribution
from os import PathLike
from pathlib import Path

from quire.vllm.surface import VLLM_VERSION

__version__ = VLLM_VERSION
__version_tuple__ = tuple(int(part) for part in VLLM_VERSION.split("."))


def _prev_minor_version() -> str:
    """Return the minor version before this one, such as 0.31."""
    return f"{__version_tuple__[0]}.{__version_tuple__[1] - 1}"


def _prev_minor_version_was(version_str: str) -> bool:
    """Whether `version_str` is the minor version before this one."""
    return version_str == _prev_minor_version()


class VllmDistribution(Distribution):
    """A package `vllm` for `importlib.metadata`, with a name and a version but no files."""

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}\n"

    def locate_file(self, path: str | PathLike[str]) -> Path:
        return Path(__file__).parent / path
