"""From what a caller gives as images to prompts with their pictures. Blocks while a child decodes
them."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from quire.chat.job import ChatInput, take_images
from quire.config.records import ModelConfig
from quire.errors import ModelError, PromptError, RequestError, quoted
from quire.frontend.inputs.images.placing import (
    Encode,
    Literals,
    PlacedImages,
    place_in_text,
    place_in_tokens,
)
from quire.images.picture import Picture, picture_of
from quire.images.rules import AnyResizing
from quire.images.sources import ImageSources

if TYPE_CHECKING:
    from quire.models.vision.model import VisionModel


def image_list(data: Any) -> list[Any]:
    """The images of `multi_modal_data`. Raises PromptError."""
    if not isinstance(data, Mapping):
        raise _error(f"must be a dict such as {{'image': picture}}, got {quoted(data)}")
    for name, value in data.items():
        if name != "image" and value is not None:
            raise _error(f"must have image alone, got {quoted(name)}")
    found = data.get("image")
    if found is None:
        return []
    return list(found) if isinstance(found, list | tuple) else [found]


def decoded_image(given: Any, rules: AnyResizing, sources: ImageSources) -> Picture:
    """A picture from a URL, the bytes of a file, a Pillow image or an array [height, width, 3] of
    bytes. Raises PromptError."""
    if isinstance(given, Picture):
        return given
    try:
        return picture_of(_bytes_of(given, sources), rules)
    except PromptError:
        raise
    except RequestError as error:
        raise PromptError(str(error), parameter="image") from None


def check_uuids(given: Any, num_images: int) -> None:
    """Raises PromptError unless the ids of the images are a list of texts. They have no effect: the
    bytes of a picture identify it."""
    if given is None:
        return
    ids = given.get("image") if isinstance(given, Mapping) else None
    ids = [ids] if isinstance(ids, str) else ids
    if (
        not isinstance(ids, Sequence)
        or len(ids) != num_images
        or not all(one is None or isinstance(one, str) for one in ids)
    ):
        raise PromptError(
            f"multi_modal_uuids must have the form {{'image': [id or None]}} with {num_images} "
            f"entries, got {quoted(given)}",
            parameter="multi_modal_uuids",
        )


def _bytes_of(given: Any, sources: ImageSources) -> bytes:
    if isinstance(given, str):
        return sources.read(given)
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    if type(given).__module__.startswith("PIL."):
        return _png(given)
    if (array := _array_of(given)) is not None:
        from PIL import Image

        return _png(Image.fromarray(array))
    if given is None:
        raise _error("must have the image itself: an image cannot be named by its uuid alone")
    raise _error(
        "must have a Pillow image, the bytes of a file, a URL, or an array [height, width, 3] of "
        f"uint8, got {type(given).__name__}"
    )


def _array_of(given: Any) -> Any:
    """An array of bytes as [height, width, 3] or [height, width], also if its channels come first
    or it is torch's; None for anything else."""
    if not hasattr(given, "ndim") or not str(getattr(given, "dtype", "")).endswith("uint8"):
        return None
    array = np.ascontiguousarray(given)
    if array.ndim == 3 and array.shape[2] != 3 and array.shape[0] == 3:
        array = np.ascontiguousarray(array.transpose(1, 2, 0))
    is_image = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)
    return array if is_image and array.size else None


def _png(image: Any) -> bytes:
    from PIL import ImageOps

    try:
        image = ImageOps.exif_transpose(image)
        if image.mode not in ("RGB", "RGBA", "L", "LA", "P", "1", "I;16", "I"):
            image = image.convert("RGB")
        file = io.BytesIO()
        image.save(file, "PNG", compress_level=1)
    except Exception as error:  # a damaged file can make Pillow raise anything
        raise _error(f"has an image that cannot be read ({type(error).__name__})") from None
    return file.getvalue()


def _error(message: str) -> PromptError:
    return PromptError(f"multi_modal_data {message}", parameter="multi_modal_data")


_KWARGS = "mm_processor_kwargs"


class ImagePrompts:
    """Decodes and places pictures for one model, or says why it takes none."""

    def __init__(self, model: ModelConfig) -> None:
        self._model = model

    @property
    def is_on(self) -> bool:
        """Whether the engine takes images."""
        return self._model.images is not None

    def check_on(self, parameter: str) -> None:
        """Raises PromptError if the engine takes no images."""
        if self._model.images is None:
            raise PromptError(
                f"this model takes no images: {self._model.no_images}", parameter=parameter
            )

    def changed(self, kwargs: Any) -> ImagePrompts:
        """The same with the settings of the image processor that one request wants. Raises
        PromptError for others than `OF_REQUESTS`, and for tiles larger than the engine's."""
        if not kwargs:
            return self
        self.check_on(_KWARGS)
        from quire.models.vision.settings import OF_REQUESTS, with_processor_kwargs

        if not isinstance(kwargs, Mapping) or not OF_REQUESTS.issuperset(kwargs):
            raise PromptError(
                f"{_KWARGS} of a request must be a dict with these keys: "
                f"{', '.join(sorted(OF_REQUESTS))}; got {quoted(kwargs):.100}",
                parameter=_KWARGS,
            )
        settings = with_processor_kwargs(self._model.hf_config, kwargs)
        found = ImagePrompts(replace(self._model, hf_config=settings))
        try:
            own, most = found._vision.patching, self._vision.patching
        except ModelError as error:
            raise PromptError(f"{_KWARGS}: {error}", parameter=_KWARGS) from None
        if own.most_patches > most.most_patches:
            raise PromptError(
                f"{_KWARGS} of a request must not make images larger than those of the engine",
                parameter=_KWARGS,
            )
        return found

    def literals(self) -> Literals:
        """Hides the placeholders in the texts of one conversation."""
        return Literals(self._vision.placeholder)

    @property
    def placeholder(self) -> str:
        """What stands for a picture in a prompt."""
        return self._vision.placeholder

    def check_number(self, count: int) -> None:
        """Raises PromptError for more images than one prompt may have."""
        self.check_on("image")
        assert self._model.images is not None
        if count > self._model.images.most:
            raise PromptError(
                f"At most {self._model.images.most} image(s) may be provided in one prompt.",
                parameter="image",
            )

    def decoded(self, given: Sequence[Any]) -> list[Picture]:
        """The pictures of what a caller gives, one after the other. Blocks. Raises PromptError."""
        self.check_number(len(given))
        vision, sources = self._vision, self._sources
        known: dict[int, Picture] = {}
        return [
            known.setdefault(id(one), decoded_image(one, vision.resizing, sources))
            if id(one) not in known
            else known[id(one)]
            for one in given
        ]

    def in_prompt(
        self,
        text: str | None,
        token_ids: list[int] | None,
        data: Any,
        uuids: Any,
        encode: Encode,
        encode_plain: Encode,
    ) -> PlacedImages:
        """The pictures of `multi_modal_data` in a prompt. Raises PromptError. `encode` adds special
        tokens, as for the whole prompt; `encode_plain` does not."""
        self.check_on("multi_modal_data")
        given = image_list(data)
        check_uuids(uuids, len(given))
        pictures = self.decoded(given)
        if token_ids is not None:
            return place_in_tokens(self._vision, token_ids, pictures, encode_plain)
        parts = (text or "").split(self._vision.placeholder)
        return place_in_text(self._vision, parts, pictures, encode)

    def in_chat(
        self, text: str, literals: Literals, pictures: Sequence[Picture], encode: Encode
    ) -> PlacedImages:
        """Pictures in a rendered conversation, whose users' text `literals` has hidden."""
        return place_in_text(self._vision, literals.parts(text), pictures, encode)

    @cached_property
    def _vision(self) -> VisionModel:
        from quire.models.vision.families import vision_model  # for requests with images alone

        found = vision_model(self._model.hf_config)
        if found is None:
            raise PromptError("this model takes no images", parameter="image")
        return found

    @cached_property
    def _sources(self) -> ImageSources:
        assert self._model.images is not None
        return ImageSources.of(self._model.images)


def rendered_with_images(
    render: Callable[[ChatInput], str], chat: ChatInput, images: ImagePrompts, encode: Encode
) -> tuple[str, PlacedImages]:
    """The text of a conversation, and its tokens with the images in them. Raises RequestError."""
    images.check_on("messages")
    literals = images.literals()
    taken = take_images(chat.messages, literals.hidden)
    pictures = images.decoded(taken.images)
    hidden = replace(
        chat,
        messages=taken.messages,
        tools=literals.hidden(chat.tools),
        documents=literals.hidden(chat.documents),
        image_placeholder=images.placeholder,
    )
    text = render(hidden)
    return text, images.in_chat(text, literals, pictures, encode)
