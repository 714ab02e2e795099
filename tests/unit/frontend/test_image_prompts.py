"""Where pictures go in a prompt: by order of parts, and never where a user wrote a placeholder."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from quire.chat.job import take_images
from quire.errors import PromptError, RequestError
from quire.frontend.inputs.images.given import check_uuids
from quire.frontend.inputs.images.placing import (
    Literals,
    PromptParts,
    place_in_text,
    place_in_tokens,
)
from quire.frontend.inputs.images.prompts import ImagePrompts
from quire.images.config import ImagesConfig
from quire.images.picture import Picture
from quire.images.rules import Layout

_ROW, _PLACE = "<r>", "<image>"
_IDS = {_ROW: 1000, _PLACE: 1001}


def _encode(text: str) -> list[int]:
    """Bytes, and ids for the two special texts."""
    ids: list[int] = []
    while text:
        special = next((one for one in _IDS if text.startswith(one)), None)
        ids.append(_IDS[special] if special else ord(text[0]))
        text = text[len(special) if special else 1 :]
    return ids


def _vision(*, is_same: bool) -> Any:
    """A model whose placeholder is the token of its rows, or another one."""
    row = _PLACE if is_same else _ROW
    return SimpleNamespace(
        placeholder=_PLACE, row_token=row, row_token_id=_IDS[row], video=None,
        kind="image", is_source=False,
        num_rows=lambda layout: 2 * len(layout.sizes),
        patching=SimpleNamespace(grid=lambda _: None, order=lambda _: None, sees_itself=False),
        expansion=lambda layout: "".join(f"[{row}{row}" for _ in layout.sizes) + "]",
    )  # fmt: skip


def _picture(number: int, tiles: int) -> Picture:
    return Picture(bytes([number]) * 32, Layout(((2, 2),) * tiles), bytes(12 * tiles))


@pytest.mark.parametrize("is_same", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_rows_are_those_of_the_pictures(is_same: bool, seed: int) -> None:
    rng, vision = random.Random(seed), _vision(is_same=is_same)
    pieces = ["a", _ROW, _PLACE, "<r", ">", "b c"]
    literals = Literals(_PLACE)
    users = ["".join(rng.choices(pieces, k=rng.randrange(6))) for _ in range(rng.randrange(1, 5))]
    pictures = [_picture(i, rng.randrange(1, 4)) for i in range(len(users) - 1)]
    rendered = _PLACE.join(map(literals.hidden, users))  # as a template writes it
    placed = place_in_text(vision, literals.parts(rendered), pictures, _encode)
    wanted: list[int] = []
    spans = []
    for index, text in enumerate(users):
        wanted += _encode(text)
        if index < len(pictures):
            for number in range(len(pictures[index].layout.sizes)):
                wanted.append(ord("["))
                spans.append((len(wanted), 2, index, number))
                wanted += [vision.row_token_id] * 2
            wanted.append(ord("]"))
    assert placed.token_ids == wanted
    assert [(one.first, one.count) for one in placed.input_rows] == [one[:2] for one in spans]
    assert len({one.digest for one in placed.input_rows}) == len(spans)
    for index, image in enumerate(placed.images):
        own = [i for i, one in enumerate(spans) if one[2] == index]
        assert [image.first_rows, image.num_entries] == [own[0], len(own)]


def test_a_prompt_of_tokens_has_placeholders_or_all_rows() -> None:
    vision, pictures = _vision(is_same=False), [_picture(1, 1), _picture(2, 2)]
    from_places = place_in_tokens(vision, [5, 1001, 6, 1001], pictures, _encode)
    whole = place_in_tokens(vision, from_places.token_ids, pictures, _encode)
    assert whole == from_places
    assert from_places.token_ids[:6] == [5, ord("["), 1000, 1000, ord("]"), 6]
    with pytest.raises(PromptError, match="once for each image"):
        place_in_tokens(vision, [5, 1001], pictures, _encode)


def test_tokens_of_a_video_do_not_stand_for_an_image() -> None:
    vision = _vision(is_same=True)
    vision.video = SimpleNamespace(kind="video", placeholder=_ROW, row_token_id=_IDS[_ROW])
    with pytest.raises(PromptError, match=r"token 1000 .* does not stand for the image that is"):
        place_in_tokens(vision, [5, 1000, 1000], [_picture(1, 1)], _encode)


def test_a_number_of_placeholders_that_differs_is_an_error() -> None:
    parts = PromptParts(["a", "b", "c"], [_PLACE] * 2)
    with pytest.raises(PromptError, match="it has 2 of them and 1 images"):
        place_in_text(_vision(is_same=True), parts, [_picture(1, 1)], _encode)


def test_images_are_taken_in_order_and_texts_are_hidden_everywhere() -> None:
    literals = Literals(_PLACE)
    messages = [
        {"role": "system", "content": f"no {_PLACE}"},
        {
            "role": "user",
            "name": _PLACE,
            "content": [
                {"type": "text", "text": f"{_PLACE}x"},
                {"type": "image_url", "image_url": {"url": "data:1"}},
                {"image": "data:2"},
                _PLACE,
                {"type": "input_image", "image_url": "data:3"},
            ],
        },
        {"role": "assistant", "tool_calls": [{"function": {"arguments": _PLACE}}]},
    ]
    taken = take_images(messages, literals.hidden)
    assert taken.images == ["data:1", "data:2", "data:3"]
    assert [one == {"type": "image"} for one in taken.messages[1]["content"]] == [
        False, True, True, False, True,
    ]  # fmt: skip
    assert _PLACE not in str(taken.messages)
    assert literals.parts(str(taken.messages[0])).texts == [str(messages[0])]


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"type": "image_url", "image_url": {"url": 3}}, "image_url.url"),
        ({"type": "video_url", "video_url": {"url": ["a"]}}, "video_url.url"),
        ({"type": "input_audio", "input_audio": {"data": 3, "format": "wav"}}, "input_audio.data"),
        ({"type": "input_audio", "input_audio": {"url": True}}, "input_audio.url"),
    ],
)
def test_what_is_no_text_is_an_error_that_names_the_field(part: Any, field: str) -> None:
    with pytest.raises(RequestError, match=rf"messages\[0\]\.content\[0\]\.{field} must be a str"):
        take_images([{"role": "user", "content": [part]}], Literals(_PLACE).hidden)


def test_ids_of_videos_stand_without_those_of_images() -> None:
    for given in (None, {}, {"video": ["a", None]}, {"image": "b", "video": ["a", "c"]}):
        check_uuids(given, {"image": 1, "video": 2, "audio": 0})
    for wrong in ("a", {"image": []}, {"image": [1]}, {"video": ["a"]}, {"audio": ["a"]}):
        with pytest.raises(PromptError, match="multi_modal_uuids must have the form"):
            check_uuids(wrong, {"image": 1, "video": 2, "audio": 0})


def test_no_more_pictures_are_decoded_than_the_context_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also none after the caller has left, or after the time of a request."""
    images = ImagesConfig({"image": 999}, pixel_bytes=0)
    found = ImagePrompts(SimpleNamespace(images=images, max_positions=9))  # type: ignore[arg-type]
    monkeypatch.setitem(found.__dict__, "_vision", _vision(is_same=True))
    decoded = list[str]()

    def decode(self: Any, given: str, sources: Any, kept: Any) -> list[Picture]:
        del self, kept
        decoded.append(given)
        sources.limit.spend(1.0)
        return [_picture(1, 2)]  # four rows

    monkeypatch.setattr(ImagePrompts, "_decoded", decode)
    assert len(found.decoded(["a", "b"])) == 2
    decoded.clear()
    with pytest.raises(PromptError, match="at least 12 input tokens"):
        found.decoded(["a", "b", "c", "d", "e"])
    assert decoded == ["a", "b", "c"]

    def check_wanted() -> None:
        if len(decoded) == 4:
            raise KeyError

    with pytest.raises(KeyError):
        found.decoded(["f", "g"], None, check_wanted)
    assert decoded[3:] == ["f"]
    decoded.clear()
    for _ in range(2):  # each request has its own time
        assert len(found.decoded(["h", "i"], seconds=2.0)) == 2
    with pytest.raises(RequestError, match=r"must take at most 1\.5 s to fetch and to decode"):
        found.decoded(["j", "k", "l"], seconds=1.5)
    assert decoded[4:] == ["j", "k"]


def test_errors_say_which_of_several_pictures_they_are_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = ImagesConfig({"image": 9}, pixel_bytes=0)
    found = ImagePrompts(SimpleNamespace(images=images, max_positions=99))  # type: ignore[arg-type]
    vision = _vision(is_same=True)
    vision.resizing = None  # nothing comes as far as that
    monkeypatch.setitem(found.__dict__, "_vision", vision)
    with pytest.raises(PromptError, match=r"^The URL must be") as caught:
        found.decoded(["no URL"])
    with pytest.raises(PromptError, match=r"^image 2 of 3: The URL must be") as caught:
        found.decoded([_picture(1, 1), "no URL", "no URL"])
    assert caught.value.parameter == "image"
