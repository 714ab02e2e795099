"""`head_program`: the draft head of a method. The module of a method is imported on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from quire.errors import CheckpointError
from quire.models.config_reader import ConfigReader

if TYPE_CHECKING:
    from quire.models.heads.target import HeadProgram, Target

_HEADS = {
    "eagle": "eagle:eagle_head",
    "eagle3": "eagle:eagle3_head",
    "medusa": "medusa:medusa_head",
    "mtp": "mtp:mtp_head",
}
"""Modules and functions, by the methods of `speculative_config`."""


def head_program(method: str | None, target: Target, reader: ConfigReader) -> HeadProgram:
    """The head with its config.json. Raises CheckpointError or UnsupportedModelError."""
    place = _HEADS.get(method or "")
    if place is None:
        raise CheckpointError(f"{reader.where} is not that of a draft head: method {method!r}")
    module, _, name = place.partition(":")
    build: Callable[[Target, ConfigReader], HeadProgram] = getattr(
        importlib.import_module(f"quire.models.heads.{module}"), name
    )
    return build(target, reader)
