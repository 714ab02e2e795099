"""`PictureCache`, and pictures that are decoded once for each tenant."""

from __future__ import annotations

import io

import pytest

from quire.errors import RequestError
from quire.images import picture as pictures
from quire.images.cache import PictureCache
from quire.images.picture import KeptPictures, Picture, picture_of
from quire.images.rules import Whole
from quire.images.time_limit import TimeLimit

Image = pytest.importorskip("PIL.Image")
_RULES = Whole(resample=0, mean=(0.5,) * 3, std=(0.5,) * 3, size=(4, 6))
_BYTES = 4 * 6 * 3


def test_the_least_recently_used_are_dropped_first() -> None:
    cache = PictureCache[str](10)
    for number, value in enumerate("abc"):
        cache.put("", bytes([number]), value, 4)
        assert cache.get("", b"\0") == "a"
    assert [cache.get("", bytes([number])) for number in range(3)] == ["a", None, "c"]
    assert (len(cache), cache.num_bytes) == (2, 8)
    cache.put("", b"\3", "too large", 11)
    assert cache.get("", b"\3") is None
    assert (cache.num_queries, cache.num_hits) == (7, 5)
    cache.clear()
    assert (len(cache), cache.num_bytes) == (0, 0)


def _file(level: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (6, 4), (level, 0, 0)).save(file, "PNG")
    return file.getvalue()


def test_a_tenant_decodes_a_picture_once(monkeypatch: pytest.MonkeyPatch) -> None:
    number, decoded = 0, pictures.decoded

    def counted(*args: object) -> object:
        nonlocal number
        number += 1
        return decoded(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(pictures, "decoded", counted)
    cache = PictureCache[Picture](2 * _BYTES)
    own, other = KeptPictures(cache, "a"), KeptPictures(cache, "b")
    first = picture_of(_file(1), _RULES, kept=own)
    assert picture_of(_file(1), _RULES, kept=own) == first == picture_of(_file(1), _RULES)
    assert number == 2  # without a tenant, nothing is looked up
    picture_of(_file(1), _RULES, kept=other)
    wider = Whole(resample=0, mean=(0.5,) * 3, std=(0.5,) * 3, size=(4, 12))
    assert picture_of(_file(1), wider, kept=own).layout.sizes == ((4, 12),)
    assert number == 4


def test_damaged_files_are_not_kept() -> None:
    cache = PictureCache[Picture](1000)
    for _ in range(2):
        with pytest.raises(RequestError):
            picture_of(_file(1)[:40], _RULES, kept=KeptPictures(cache, ""))
    assert len(cache) == 0


def test_the_files_of_a_request_have_a_time_together() -> None:
    """The child counts its processor time; a picture that is kept takes none."""
    kept, file = KeptPictures(PictureCache[Picture](1000), ""), io.BytesIO()
    Image.effect_noise((2000, 1500), 50).save(file, "PNG")
    data = file.getvalue()
    picture_of(data, _RULES, kept=kept, limit=TimeLimit(10.0))
    picture_of(data, _RULES, kept=kept, limit=TimeLimit(1e-9))
    limit = TimeLimit(1e-3)
    with pytest.raises(RequestError, match=r"at most 0\.001 s"):
        picture_of(data, _RULES, limit=limit)
    with pytest.raises(RequestError, match="send fewer or smaller ones"):
        limit.spend(0.0)
