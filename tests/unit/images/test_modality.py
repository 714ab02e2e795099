"""The records of modalities agree with each other and with the readers of the front end."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import chain

import pytest

from quire.frontend.inputs.images.given import _READERS, given_media, kind_of_given
from quire.images.modality import MODALITIES


def test_each_modality_has_a_reader_and_a_decoder() -> None:
    assert _READERS.keys() == MODALITIES.keys()
    assert all(find_spec(one.decoder.module) for one in MODALITIES.values())
    assert all(one.goes_with in ("", *MODALITIES) for one in MODALITIES.values())


def test_a_part_of_a_message_has_one_modality() -> None:
    parts = [*chain.from_iterable(one.parts for one in MODALITIES.values())]
    assert len(parts) == len({*parts})


@pytest.mark.parametrize("kind", MODALITIES)
def test_a_file_keeps_its_modality(kind: str) -> None:
    assert [*map(kind_of_given, given_media({kind: [b"a", b"b"]}))] == [kind, kind]
