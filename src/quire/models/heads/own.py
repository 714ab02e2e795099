"""Code shared by heads with files of their own."""

from __future__ import annotations

from quire.errors import CheckpointError
from quire.models.config_reader import ConfigReader
from quire.models.heads.mark import MARK

OWN = "head."
"""Beginning of the names of the head's own tensors in its program."""


def optional_tensors(reader: ConfigReader) -> list[str]:
    """The tensors of `OPTIONAL` that the head has."""
    mark = reader.section(MARK)
    return [] if mark is None else mark.names("tensors")


def check_equal(reader: ConfigReader, key: str, own: int, wanted: int) -> None:
    """Raises CheckpointError unless the head's number is the target's."""
    if own != wanted:
        raise CheckpointError(
            f"{reader.where}: {key} of the draft head is {own}, and the model for which it drafts "
            f"has {wanted}; they must be equal"
        )
