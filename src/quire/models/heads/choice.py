"""`head_program`: the draft head of a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quire.errors import CheckpointError
from quire.models.config_reader import ConfigReader
from quire.models.heads.eagle import eagle3_head, eagle_head
from quire.models.heads.medusa import medusa_head
from quire.models.heads.mtp import mtp_head
from quire.models.heads.target import HeadProgram, Target

HEADS: Mapping[str, Callable[[Target, ConfigReader], HeadProgram]] = {
    "eagle": eagle_head,
    "eagle3": eagle3_head,
    "medusa": medusa_head,
    "mtp": mtp_head,
}
"""By their names in `speculative_config`."""


def head_program(method: str | None, target: Target, reader: ConfigReader) -> HeadProgram:
    """The head with its config.json. Raises CheckpointError or UnsupportedModelError."""
    build = HEADS.get(method or "")
    if build is None:
        raise CheckpointError(f"{reader.where} is not that of a draft head: method {method!r}")
    return build(target, reader)
