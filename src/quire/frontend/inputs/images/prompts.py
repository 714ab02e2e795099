"""From what a caller gives as images, videos and audio to prompts with them. Blocks while a child
decodes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any

from quire.chat.job import ChatInput, GivenEmbeds, take_images
from quire.config.records import ModelConfig
from quire.errors import ModelError, PromptError, quoted
from quire.frontend.inputs.images.embeds import NOT_ENABLED, embedded_pictures
from quire.frontend.inputs.images.given import check_uuids, decoded, given_media, kind_of_given
from quire.frontend.inputs.images.placing import (
    Encode,
    Literals,
    PlacedImages,
    PromptParts,
    before_prompt,
    forms_of,
    place_in_text,
    place_in_tokens,
)
from quire.frontend.inputs.refusals import prompt_too_long
from quire.frontend.inputs.tokenization import Tokenization
from quire.images.cache import PictureCache
from quire.images.config import PROCESSOR_KWARGS, ImagesConfig
from quire.images.modality import MODALITIES
from quire.images.picture import KeptPictures, Picture
from quire.images.rules import Rules
from quire.images.sources import ImageSources

if TYPE_CHECKING:
    from quire.models.media.model import VisionModel


class ImagePrompts:
    """Decodes and places pictures and sounds for one model, or says why it takes none."""

    def __init__(self, model: ModelConfig, cache: PictureCache[Picture] | None = None) -> None:
        """`cache`: of decoded pictures; None: an own one."""
        self._model = model
        num_bytes = 0 if model.images is None else model.images.pixel_bytes
        self._cache: PictureCache[Picture] = cache or PictureCache(num_bytes)

    @property
    def is_on(self) -> bool:
        """Whether the engine takes images or audio."""
        return self._model.images is not None

    def check_on(self, parameter: str) -> None:
        """Raises PromptError if the engine takes neither images nor audio."""
        if self._model.images is None:
            raise PromptError(
                f"this model takes no images and no audio: {self._model.no_images}",
                parameter=parameter,
            )

    def changed(self, kwargs: Any) -> ImagePrompts:
        """The same with the settings of the image processor that one request wants. Raises
        PromptError for others than `OF_REQUESTS`, and for tiles larger than the engine's."""
        if not kwargs:
            return self
        self.check_on(PROCESSOR_KWARGS)
        from quire.models.media.settings import OF_REQUESTS, with_processor_kwargs

        if not isinstance(kwargs, Mapping) or not OF_REQUESTS.issuperset(kwargs):
            raise PromptError(
                f"{PROCESSOR_KWARGS} of a request must be a dict with these keys: "
                f"{', '.join(sorted(OF_REQUESTS))}; got {quoted(kwargs):.100}",
                parameter=PROCESSOR_KWARGS,
            )
        settings = with_processor_kwargs(self._model.hf_config, kwargs)
        found = ImagePrompts(replace(self._model, hf_config=settings), self._cache)
        try:
            own, most = found._vision.patching, self._vision.patching
        except ModelError as error:
            raise PromptError(f"{PROCESSOR_KWARGS}: {error}", parameter=PROCESSOR_KWARGS) from None
        for name, value in kwargs.items():
            if value is not None and name not in found._vision.settings:
                raise PromptError(
                    f"{PROCESSOR_KWARGS} must have no {name}: the image processor of this model "
                    "has no such setting",
                    parameter=PROCESSOR_KWARGS,
                )
        if own.most_patches > most.most_patches:
            raise PromptError(
                f"{PROCESSOR_KWARGS} of a request must not make images larger than those of the "
                "engine",
                parameter=PROCESSOR_KWARGS,
            )
        return found

    def literals(self) -> Literals:
        """Hides the placeholders in the texts of one conversation."""
        return Literals(*(form.placeholder for form in forms_of(self._vision)))

    def with_placeholders(self, chat: ChatInput) -> ChatInput:
        """The conversation with what stands for a picture, a video and a sound in its texts."""
        places: dict[str, str] = {one.kind: one.placeholder for one in forms_of(self._vision)}
        return replace(chat, placeholders=places)

    def check_number(self, given: Sequence[Any]) -> None:
        """Raises PromptError for more images, videos or sounds than one prompt may have."""
        self.check_on("image")
        kinds = {form.kind for form in forms_of(self._vision)}
        for kind, count in _counts(given).items():
            if count and kind not in kinds:
                what = MODALITIES[kind].plural
                raise PromptError(f"this model takes no {what}", parameter=kind)
            most = min(self._config.limits.get(kind, 0), 1 if self._vision.is_source else count)
            if count > most:
                raise PromptError(
                    f"At most {most} {kind}(s) may be provided in one prompt.", parameter=kind
                )

    def decoded(
        self,
        given: Sequence[Any],
        tenant: str | None = None,
        check_wanted: Callable[[], None] | None = None,
        seconds: float = inf,
    ) -> list[Picture]:
        """The pictures of what a caller gives, one after the other. Those of a tenant are kept for
        its next requests; None: nothing is kept. Blocks. Raises PromptError, also as soon as there
        are more rows than the context has tokens, or more `seconds` are spent than these.
        `check_wanted` is called before each picture."""
        self.check_number(given)
        kept = None if tenant is None else KeptPictures(self._cache, tenant)
        sources = ImageSources.of(self._config, seconds)
        known: dict[int, list[Picture]] = {}
        num_rows, most = 0, self._model.max_positions
        for index, one in enumerate(given):
            if check_wanted is not None:
                check_wanted()
            if id(one) not in known:
                with _number_in_errors(given, index):
                    known[id(one)] = self._decoded(one, sources, kept)
            num_rows += sum(self._vision.num_rows(picture.layout) for picture in known[id(one)])
            if num_rows > most:  # so that pixels that nothing can use do not fill the memory
                raise prompt_too_long(num_rows, most, is_whole=False)
        return [picture for one in given for picture in known[id(one)]]

    def _decoded(
        self, given: Any, sources: ImageSources, kept: KeptPictures | None
    ) -> list[Picture]:
        if isinstance(given, GivenEmbeds):
            if not self._config.takes_embeds:
                raise PromptError(NOT_ENABLED, parameter="image_embeds")
            return embedded_pictures(given.value, self._vision)
        kind = kind_of_given(given)  # one of the model's: see `check_number`
        [rules] = [form.resizing for form in forms_of(self._vision) if form.kind == kind]
        return [decoded(given, rules, sources, kept)]

    def in_prompt(
        self,
        prompt: Mapping[str, Any],
        tokenization: Tokenization,
        encode: Callable[[str, Tokenization], list[int]],
        as_token_ids: Callable[[Any], list[int]],
        tenant: str,
    ) -> PlacedImages:
        """The pictures of `multi_modal_data` in a prompt. Raises PromptError. The prompt of a
        decoder that attends to a sound has all of its special tokens itself."""
        self.check_on("multi_modal_data")
        if tokenization.truncation is not None:
            raise PromptError(
                "truncate_prompt_tokens is not supported with images",
                parameter="truncate_prompt_tokens",
            )
        data, text = prompt["multi_modal_data"], prompt.get("prompt")
        placed = data.get("image") if isinstance(data, Mapping) else None
        if isinstance(placed, PlacedImages):
            return placed
        ids = prompt.get("prompt_token_ids")
        token_ids = None if ids is None else as_token_ids(ids)
        given = given_media(data)
        check_uuids(prompt.get("multi_modal_uuids"), _counts(given))
        pictures = self.decoded(given, tenant)
        plain = Tokenization(add_special_tokens=False)
        if self._vision.is_source:
            source_ids = token_ids or encode(text or "", plain)
            return before_prompt(self._vision, source_ids, pictures)
        if token_ids is not None:
            return place_in_tokens(
                self._vision, token_ids, pictures, lambda part: encode(part, plain)
            )
        placeholders = [form.placeholder for form in forms_of(self._vision)]
        parts = PromptParts.of(text or "", placeholders)
        return place_in_text(self._vision, parts, pictures, lambda part: encode(part, tokenization))

    def in_chat(
        self, text: str, literals: Literals, pictures: Sequence[Picture], encode: Encode
    ) -> PlacedImages:
        """Pictures in a rendered conversation, whose users' text `literals` has hidden."""
        return place_in_text(self._vision, literals.parts(text), pictures, encode)

    def transcription(self, language: str | None, encode: Encode) -> str:
        """The prompt that asks for the words of a sound. Raises PromptError for a model without
        one. `encode` adds no special tokens."""
        if not self.is_on or not self._vision.transcription:
            why = self._model.no_images
            if self.is_on:
                why = "it hears it in chats" if self._vision.kind == "audio" else "it takes images"
            raise PromptError(
                "transcriptions need a model that was trained to write down audio, such as "
                f"Whisper or Voxtral; this one was not: {why}",
                parameter="model",
            )
        from quire.models.media.languages import asked_code  # for transcriptions alone

        text, known = self._vision.transcription, self._vision.languages
        code = None if language is None else asked_code(language, known)
        for mark in re.findall(r"\[.+?\]", text):
            if len(encode(mark)) != 1:
                raise PromptError(f"the tokenizer must have the token {mark}", parameter="model")
        return text.format(language="" if code is None else f"lang:{code}")

    @property
    def rules(self) -> Rules:
        """How a picture or a sound becomes the tiles that the encoder takes."""
        return self._vision.resizing

    def before(self, token_ids: list[int], picture: Picture) -> PlacedImages:
        """The prompt of a decoder that attends to the rows of a sound."""
        return before_prompt(self._vision, token_ids, [picture])

    def in_transcription(
        self, text: str, pictures: Sequence[Picture], encode: Encode
    ) -> PlacedImages:
        """A sound in the text of `transcription`. `encode` adds special tokens."""
        parts = PromptParts.of(text, [self._vision.placeholder])
        return place_in_text(self._vision, parts, pictures, encode)

    @cached_property
    def _vision(self) -> VisionModel:
        from quire.models.media.families import vision_model  # for requests with images alone

        found = vision_model(self._model.hf_config)
        if found is None:
            raise PromptError("this model takes no images", parameter="image")
        return found

    @property
    def _config(self) -> ImagesConfig:
        assert self._model.images is not None
        return self._model.images


@contextmanager
def _number_in_errors(given: Sequence[Any], index: int) -> Iterator[None]:
    """Errors of the block say which of several images, videos or sounds they are about."""
    try:
        yield
    except PromptError as error:
        kind = kind_of_given(given[index])
        count, number = (_counts(each).get(kind, 0) for each in (given, given[: index + 1]))
        if count == 1:
            raise
        message = f"{kind} {number} of {count}: {error}"
        raise PromptError(message, parameter=error.parameter) from None


def _counts(given: Sequence[Any]) -> dict[str, int]:
    """How many there are of each modality."""
    kinds = [*map(kind_of_given, given)]
    return {name: kinds.count(name) for name in MODALITIES}


def with_decoder_prompt(prompt: Mapping[str, Any]) -> Mapping[str, Any]:
    """The decoder's prompt, with what the encoder gets. Raises PromptError."""
    encoder, decoder = prompt["encoder_prompt"], prompt.get("decoder_prompt")
    is_plain = isinstance(encoder, Mapping) and not encoder.get("prompt")
    if not is_plain or decoder is None or len(prompt) > 2:
        raise PromptError(
            "a prompt with encoder_prompt must have the form {'encoder_prompt': "
            "{'multi_modal_data': {'audio': samples}}, 'decoder_prompt': text or token ids}",
            parameter="encoder_prompt",
        )
    if isinstance(decoder, str):
        decoder = {"prompt": decoder}
    elif not isinstance(decoder, Mapping):
        decoder = {"prompt_token_ids": decoder}
    return {**{key: one for key, one in encoder.items() if one}, **decoder}


def rendered_with_images(
    render: Callable[[ChatInput], str], chat: ChatInput, images: ImagePrompts, encode: Encode
) -> tuple[str, PlacedImages]:
    """The text of a conversation of the only tenant, and its tokens with the images in them. Raises
    RequestError."""
    images.check_on("messages")
    literals = images.literals()
    taken = take_images(chat.messages, literals.hidden)
    pictures = images.decoded(taken.images, "")
    hidden = replace(
        chat,
        messages=taken.messages,
        tools=literals.hidden(chat.tools),
        documents=literals.hidden(chat.documents),
    )
    text = render(images.with_placeholders(hidden))
    return text, images.in_chat(text, literals, pictures, encode)
