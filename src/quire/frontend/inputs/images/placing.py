"""Puts pictures, videos and sounds into a prompt: their placeholders become tokens whose rows the
encoder computes, or the caller has given.

A placeholder comes from the caller's prompt or from the chat template. Text of a user that looks
like one is marked before the template is rendered (`Literals`), and stays text.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from quire.errors import PromptError
from quire.images.picture import Picture
from quire.protocol import ImageInput, InputRows

if TYPE_CHECKING:
    from quire.models.media.model import VideoForm, VisionModel

Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class PlacedImages:
    """A prompt's tokens, its pictures, and which tokens stand for them."""

    token_ids: list[int]
    input_rows: list[InputRows]
    images: list[ImageInput]


@dataclass(frozen=True, slots=True)
class PromptParts:
    """A text divided at its placeholders."""

    texts: list[str]
    placeholders: list[str]
    """Those between the texts."""

    @classmethod
    def of(cls, text: str, placeholders: Sequence[str]) -> PromptParts:
        """Divides a text at these placeholders."""
        found = re.split(f"({'|'.join(map(re.escape, placeholders))})", text)
        return cls(found[::2], found[1::2])


class Literals:
    """Hides placeholders in the text of users while a chat template writes its own."""

    def __init__(self, *placeholders: str) -> None:
        mark = f"quire{secrets.token_hex(12)}"
        self._marks = {one: f"{mark}{index}" for index, one in enumerate(placeholders)}

    def hidden(self, value: Any) -> Any:
        """A copy of a JSON value with marks in place of placeholders, in all its texts."""
        if isinstance(value, str):
            for placeholder, mark in self._marks.items():
                value = value.replace(placeholder, mark)
            return value
        if isinstance(value, list):
            return [self.hidden(one) for one in value]
        if isinstance(value, dict):
            return {self.hidden(name): self.hidden(one) for name, one in value.items()}
        return value

    def parts(self, text: str) -> PromptParts:
        """The text around the placeholders that the template has written, as users wrote it."""
        found = PromptParts.of(text, [*self._marks])
        for placeholder, mark in self._marks.items():
            found.texts[:] = [part.replace(mark, placeholder) for part in found.texts]
        return found


def place_in_text(
    vision: VisionModel, parts: PromptParts, pictures: Sequence[Picture], encode: Encode
) -> PlacedImages:
    """Pictures between the parts of a text. Those of a kind are given in order. Raises PromptError
    if the numbers differ."""
    pictures = _by_placeholder(vision, parts.placeholders, pictures)
    forms = [_form(vision, picture) for picture in pictures]
    pieces, is_row = [parts.texts[0]], [False] * _count_rows(vision, parts.texts[0])
    for picture, form, part in zip(pictures, forms, parts.texts[1:], strict=True):
        expansion = form.expansion(picture.layout)
        pieces += [expansion, part]
        is_row += [True] * expansion.count(form.row_token) + [False] * _count_rows(vision, part)
    token_ids = encode("".join(pieces))
    row_tokens = {form.row_token_id: form.row_token for form in forms_of(vision)}
    places = [i for i, one in enumerate(token_ids) if one in row_tokens]
    if len(places) != len(is_row):
        tokens = ", ".join(f"{text!r} as the token {token}" for token, text in row_tokens.items())
        raise PromptError(f"the tokenizer must have {tokens}", parameter="prompt")
    rows = [place for place, is_one in zip(places, is_row, strict=True) if is_one]
    return _placed(vision, token_ids, rows, pictures)


def place_in_tokens(
    vision: VisionModel, token_ids: list[int], pictures: Sequence[Picture], encode: Encode
) -> PlacedImages:
    """Pictures in a prompt of tokens, which has a placeholder for each, or all their rows."""
    row_tokens = {form.row_token_id for form in forms_of(vision)}
    rows = [i for i, one in enumerate(token_ids) if one in row_tokens]
    if len(rows) == sum(vision.num_rows(one.layout) for one in pictures):
        return _placed(vision, token_ids, rows, pictures)
    marks = {tuple(encode(form.placeholder)): form.placeholder for form in forms_of(vision)}
    places = _places_of(token_ids, marks)
    pictures = _by_placeholder(vision, [marks[mark] for _, mark in places], pictures)
    found, rows, begin = list[int](), list[int](), 0
    for (place, mark), picture in zip(places, pictures, strict=True):
        form = _form(vision, picture)
        found += token_ids[begin:place]
        expansion = encode(form.expansion(picture.layout))
        rows += [len(found) + i for i, one in enumerate(expansion) if one == form.row_token_id]
        found += expansion
        begin = place + len(mark)
    return _placed(vision, found + token_ids[begin:], rows, pictures)


def before_prompt(
    vision: VisionModel, token_ids: list[int], pictures: Sequence[Picture]
) -> PlacedImages:
    """The one sound whose rows a decoder attends to, and the decoder's tokens. The rows are the
    positions before them, for which `with_sources` adds tokens. Raises PromptError."""
    if len(pictures) != 1:
        raise PromptError(
            f"a prompt of this model must have one {vision.kind}, got {len(pictures)}",
            parameter="multi_modal_data",
        )
    rows = [*range(vision.num_rows(pictures[0].layout))]
    placed = _placed(vision, [vision.row_token_id] * len(rows), rows, pictures)
    return PlacedImages(token_ids, placed.input_rows, placed.images)


def _places_of(
    token_ids: Sequence[int], marks: Iterable[tuple[int, ...]]
) -> list[tuple[int, tuple[int, ...]]]:
    """Index of the first token of each placeholder, and its tokens."""
    found, end = list[tuple[int, tuple[int, ...]]](), 0
    by_first = {mark[0]: mark for mark in marks if mark}
    for place, token_id in enumerate(token_ids):
        mark = by_first.get(token_id)
        if mark and place >= end and tuple(token_ids[place : place + len(mark)]) == mark:
            found.append((place, mark))
            end = place + len(mark)
    return found


def forms_of(vision: VisionModel) -> list[VisionModel | VideoForm]:
    """The forms of what a model takes: of pictures or sounds, then of videos."""
    return [vision] if vision.video is None else [vision, vision.video]


def _form(vision: VisionModel, picture: Picture) -> VisionModel | VideoForm:
    found = next((form for form in forms_of(vision) if form.kind == picture.kind), None)
    if found is None:
        raise PromptError(f"this model takes no {picture.kind}", parameter=picture.kind)
    return found


def _count_rows(vision: VisionModel, text: str) -> int:
    """Number of tokens in a user's text that stand for an image row elsewhere."""
    return sum(text.count(form.row_token) for form in forms_of(vision))


def _placed(
    vision: VisionModel, token_ids: list[int], rows: list[int], pictures: Sequence[Picture]
) -> PlacedImages:
    given: list[InputRows] = []
    images: list[ImageInput] = []
    begin, left = 0, [*pictures]
    while left:
        is_next = [_form(vision, one).row_token_id == token_ids[rows[begin]] for one in left]
        if True not in is_next:
            raise PromptError(
                f"token {token_ids[rows[begin]]} of the prompt does not stand for the "
                f"{left[0].kind} that is given",
                parameter="prompt",
            )
        picture = left.pop(is_next.index(True))
        count = vision.num_rows(picture.layout)
        runs = _runs(rows[begin : begin + count])
        if sum(size for _, size in runs) != count:
            raise PromptError("an image has fewer tokens than rows", parameter="prompt")
        begin += count
        distance = 0.0
        if picture.kind == "video" and vision.video is not None:
            distance = vision.video.frame_distance
        grid = vision.patching.grid(picture.layout.sizes[0])
        num_runs = len(picture.layout.sizes) if picture.kind == "video" and not distance else 1
        if grid is not None and len(runs) != num_runs:
            raise PromptError("the tokens of an image must follow each other", parameter="prompt")
        if picture.rows is None:
            image = ImageInput(
                picture.digest, picture.layout, picture.pixels, len(given), len(runs)
            )
            order = vision.patching.order(picture.layout)
            if order is not None:
                of_tiles = vision.patching.num_tile_rows(picture.layout)
                image = msgspec.structs.replace(
                    image, num_tile_rows=of_tiles, order=order.tobytes()
                )
            images.append(image)
        is_span, row = vision.patching.sees_itself, 0
        for first, size in runs:
            place = struct.pack("<QQd", row, size, distance)
            digest = hashlib.sha256(picture.digest + place).digest()
            data = b"" if picture.rows is None else picture.rows[row : row + size].tobytes()
            given.append(InputRows(
                first, size, digest, data, grid=grid, tile_distance=distance, is_span=is_span
            ))  # fmt: skip
            row += size
    return PlacedImages(token_ids, given, images)


def _runs(places: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbours as pairs of the first and the number."""
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and sum(runs[-1]) == place:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((place, 1))
    return runs


def _by_placeholder(
    vision: VisionModel, placeholders: Sequence[str], pictures: Sequence[Picture]
) -> list[Picture]:
    """The pictures and videos in the order of their placeholders. Raises PromptError if the
    numbers differ."""
    given: dict[str, Iterator[Picture]] = {}
    for form in forms_of(vision):
        kind = form.kind
        own = [one for one in pictures if _form(vision, one) is form]
        num_places = placeholders.count(form.placeholder)
        if num_places != len(own):
            raise PromptError(
                f"the prompt must have {json.dumps(form.placeholder)} once for each {kind}: it "
                f"has {num_places} of them and {len(own)} {kind}s",
                parameter="prompt",
            )
        given[form.placeholder] = iter(own)
    return [next(given[place]) for place in placeholders]
