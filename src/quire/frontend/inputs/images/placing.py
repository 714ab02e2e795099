"""Puts pictures into a prompt: their placeholders become tokens whose rows the encoder computes.

A picture's placeholder comes from the caller's prompt or from the chat template. Text of a user
that looks like one is marked before the template is rendered (`Literals`), and stays text.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from quire.errors import PromptError
from quire.images.picture import Picture
from quire.protocol.images import ImageInput
from quire.protocol.input_rows import InputRows

if TYPE_CHECKING:
    from quire.models.vision.model import VisionModel

Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class PlacedImages:
    """A prompt's tokens, its pictures, and which tokens stand for them."""

    token_ids: list[int]
    input_rows: list[InputRows]
    images: list[ImageInput]


class Literals:
    """Hides the placeholder in the text of users while a chat template writes its own."""

    def __init__(self, placeholder: str) -> None:
        self._placeholder = placeholder
        self._mark = f"quire{secrets.token_hex(12)}"

    def hidden(self, value: Any) -> Any:
        """A copy of a JSON value with marks in place of placeholders, in all its texts."""
        if isinstance(value, str):
            return value.replace(self._placeholder, self._mark)
        if isinstance(value, list):
            return [self.hidden(one) for one in value]
        if isinstance(value, dict):
            return {self.hidden(name): self.hidden(one) for name, one in value.items()}
        return value

    def parts(self, text: str) -> list[str]:
        """The text around the placeholders that the template has written, as users wrote it."""
        parts = text.split(self._placeholder)
        return [part.replace(self._mark, self._placeholder) for part in parts]


def place_in_text(
    vision: VisionModel, parts: Sequence[str], pictures: Sequence[Picture], encode: Encode
) -> PlacedImages:
    """Pictures between the parts of a text. Raises PromptError if their numbers differ."""
    _check_count(vision, len(parts) - 1, len(pictures))
    text, is_row = parts[0], [False] * parts[0].count(vision.row_token)
    for picture, part in zip(pictures, parts[1:], strict=True):
        expansion = vision.expansion(picture.layout)
        text += expansion + part
        is_row += [True] * expansion.count(vision.row_token)
        is_row += [False] * part.count(vision.row_token)
    token_ids = encode(text)
    places = [i for i, one in enumerate(token_ids) if one == vision.row_token_id]
    if len(places) != len(is_row):
        raise PromptError(
            f"the tokenizer must have {vision.row_token!r} as the token {vision.row_token_id}",
            parameter="prompt",
        )
    rows = [place for place, is_one in zip(places, is_row, strict=True) if is_one]
    return _placed(vision, token_ids, rows, pictures)


def place_in_tokens(
    vision: VisionModel, token_ids: list[int], pictures: Sequence[Picture], encode: Encode
) -> PlacedImages:
    """Pictures in a prompt of tokens, which has a placeholder for each, or all their rows."""
    placeholder_ids = encode(vision.placeholder)
    placeholder_id = placeholder_ids[0] if len(placeholder_ids) == 1 else vision.row_token_id
    rows = [i for i, one in enumerate(token_ids) if one == vision.row_token_id]
    if len(rows) == sum(vision.num_rows(one.layout) for one in pictures):
        return _placed(vision, token_ids, rows, pictures)
    places = [i for i, one in enumerate(token_ids) if one == placeholder_id]
    _check_count(vision, len(places), len(pictures))
    found, rows, begin = list[int](), list[int](), 0
    for place, picture in zip(places, pictures, strict=True):
        found += token_ids[begin:place]
        expansion = encode(vision.expansion(picture.layout))
        rows += [len(found) + i for i, one in enumerate(expansion) if one == vision.row_token_id]
        found += expansion
        begin = place + 1
    return _placed(vision, found + token_ids[begin:], rows, pictures)


def _placed(
    vision: VisionModel, token_ids: list[int], rows: list[int], pictures: Sequence[Picture]
) -> PlacedImages:
    given: list[InputRows] = []
    images: list[ImageInput] = []
    begin = 0
    for picture in pictures:
        count = vision.num_rows(picture.layout)
        runs = _runs(rows[begin : begin + count])
        if sum(size for _, size in runs) != count:
            raise PromptError("an image has fewer tokens than rows", parameter="prompt")
        begin += count
        grid = vision.patching.grid(picture.layout.sizes[0])
        if grid is not None and len(runs) != 1:
            raise PromptError("the tokens of an image must follow each other", parameter="prompt")
        image = ImageInput(picture.digest, picture.layout, picture.pixels, len(given), len(runs))
        order = vision.patching.order(picture.layout)
        if order is not None:
            of_tiles = vision.patching.num_tile_rows(picture.layout)
            image = msgspec.structs.replace(image, num_tile_rows=of_tiles, order=order.tobytes())
        images.append(image)
        is_span, row = vision.patching.sees_itself, 0
        for first, size in runs:
            place = struct.pack("<QQ", row, size)
            digest = hashlib.sha256(picture.digest + place).digest()
            given.append(InputRows(first, size, digest, grid=grid, is_span=is_span))
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


def _check_count(vision: VisionModel, num_places: int, num_images: int) -> None:
    if num_places != num_images:
        raise PromptError(
            f"the prompt must have {json.dumps(vision.placeholder)} once for each image: it has "
            f"{num_places} of them and {num_images} images",
            parameter="prompt",
        )
