"""`ImagePrompts`: the pictures of the prompts of one model. Thread-safe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from quire.config.records import ModelConfig
from quire.errors import ModelError, PromptError, quoted
from quire.frontend.inputs.images.given import check_uuids, decoded_image, image_list
from quire.frontend.inputs.images.placing import (
    Encode,
    Literals,
    PlacedImages,
    place_in_text,
    place_in_tokens,
)
from quire.images.picture import Picture
from quire.images.sources import ImageSources

if TYPE_CHECKING:
    from quire.models.vision.model import VisionModel


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
