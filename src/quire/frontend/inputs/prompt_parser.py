"""`PromptParser`: converts a prompt in any supported form to valid token ids.

Called by `InputProcessor` for every request. Messages are vLLM's. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quire.config.records import ModelConfig
from quire.errors import PromptError, quoted
from quire.frontend.inputs.images.prompts import ImagePrompts, with_decoder_prompt
from quire.frontend.inputs.prompt_embeds import rows_of_prompt
from quire.frontend.inputs.refusals import check_text, prompt_fills_context, prompt_too_long
from quire.frontend.inputs.tokenization import Tokenization
from quire.images.config import PROCESSOR_KWARGS
from quire.protocol import ImageInput, InputRows
from quire.protocol.cache_scope import EVERYONE, CacheScope
from quire.tokenizer import Tokenizer

_PROMPT_KEYS = frozenset({
    "prompt", "prompt_token_ids", "cache_salt", "prediction", "token_type_ids",
    "prompt_embeds", "prompt_is_token_ids", "multi_modal_data", "multi_modal_uuids",
    PROCESSOR_KWARGS,
})  # fmt: skip
_NEUTRAL_KEYS = frozenset({"media_io_kwargs"})
"""Further keys of vLLM's prompts, accepted only with an empty value."""


@dataclass(frozen=True, slots=True)
class ParsedPrompt:
    """A parsed prompt; `text` is None if only token ids were given."""

    text: str | None
    token_ids: list[int]
    scope: CacheScope = EVERYONE
    token_type_ids: list[int] = field(default_factory=list)
    """One per token of a prompt of token ids, for models that have token types."""
    predicted_token_ids: list[int] = field(default_factory=list)
    """The expected reply."""
    input_rows: list[InputRows] = field(default_factory=list)
    """Rows that take the place of the embeddings of some of the tokens."""
    images: list[ImageInput] = field(default_factory=list)
    """Pictures whose rows are computed before the request starts."""


class PromptParser:
    """Validates and tokenizes prompts for one model. Immutable."""

    def __init__(
        self, model_config: ModelConfig, tokenizer: Tokenizer | None, block_size: int
    ) -> None:
        """`block_size`: tokens of a block of the KV cache."""
        self._model_config = model_config
        self._block_size = block_size
        self._tokenizer = tokenizer
        self.images = ImagePrompts(model_config)

    def parse(self, prompt: Any, tokenization: Tokenization) -> ParsedPrompt:
        """Parse a prompt, unless it is parsed already, and validate its token ids. Raises
        PromptError."""
        is_parsed = isinstance(prompt, ParsedPrompt)
        parsed = prompt if is_parsed else self._parse(prompt, tokenization)
        self._check_tokens(parsed.token_ids)
        if isinstance(prompt, Mapping) and (prediction := prompt.get("prediction")) is not None:
            predicted = self._predicted(prediction, self._model_config.max_model_len)
            return replace(parsed, predicted_token_ids=predicted)
        return parsed

    def _predicted(self, prediction: Any, most: int) -> list[int]:
        """The first `most` token ids of an expected reply; no later one can be reached."""
        if isinstance(prediction, str):
            plain = Tokenization(add_special_tokens=False)
            return self._encode(prediction, plain)[:most]
        if not isinstance(prediction, list) or not all(type(one) is int for one in prediction):
            raise PromptError(
                "prediction must be a string or a list of token ids", parameter="prediction"
            )
        token_ids = prediction[:most]
        if token_ids:
            self._check_vocabulary(token_ids, "prediction")
        return token_ids

    def _parse(self, prompt: Any, tokenization: Tokenization) -> ParsedPrompt:
        if isinstance(prompt, str):
            return ParsedPrompt(prompt, self._encode(prompt, tokenization))
        if isinstance(prompt, Mapping):
            return self._parse_dict(prompt, tokenization)
        return ParsedPrompt(None, _cut(_as_token_ids(prompt), tokenization))

    def _parse_dict(self, prompt: Mapping[str, Any], tokenization: Tokenization) -> ParsedPrompt:
        if "encoder_prompt" in prompt:
            prompt = with_decoder_prompt(prompt)
        unknown = sorted(
            key if isinstance(key, str) and key.isidentifier() else quoted(key)
            for key, value in prompt.items()
            if key not in _PROMPT_KEYS and not (key in _NEUTRAL_KEYS and not value)
        )
        if unknown:
            names = ", ".join(unknown[:10])
            raise PromptError(
                f"a prompt must not contain {names}; it may contain prompt or "
                "prompt_token_ids, and cache_salt",
                parameter=unknown[0],
            )
        salt = prompt.get("cache_salt")
        if salt is not None and not (isinstance(salt, str) and salt and _is_unicode(salt)):
            raise PromptError(
                "Parameter 'cache_salt' must be a non-empty string if provided.",
                parameter="cache_salt",
                value=salt,
            )
        scope = EVERYONE if salt is None else CacheScope(salt)
        text = prompt.get("prompt")
        if text is not None and not isinstance(text, str):
            raise PromptError(
                f"prompt must be a string, got {quoted(text)} ({type(text).__name__})",
                parameter="prompt",
            )
        ids = prompt.get("prompt_token_ids")
        images = self.images
        if settings := prompt.get(PROCESSOR_KWARGS):
            images = images.changed(settings)
        if prompt.get("prompt_embeds") is not None:
            rows = rows_of_prompt(
                prompt,
                None if ids is None else _as_token_ids(ids),
                self._model_config,
                self._block_size,
                is_cut=tokenization.truncation is not None,
            )
            return ParsedPrompt(text, rows.token_ids, scope, input_rows=rows.input_rows)
        if prompt.get("prompt_is_token_ids") is not None:
            raise PromptError(
                "prompt_is_token_ids must come with prompt_embeds", parameter="prompt_is_token_ids"
            )
        if prompt.get("multi_modal_data"):
            tenant = scope.salt or ""
            placed = images.in_prompt(prompt, tokenization, self._encode, _as_token_ids, tenant)
            return ParsedPrompt(
                text, placed.token_ids, scope, input_rows=placed.input_rows, images=placed.images
            )
        if ids is not None:
            cut = _cut(_as_token_ids(ids), tokenization)
            types = _as_token_ids(prompt.get("token_type_ids") or [])
            return ParsedPrompt(text, cut, scope, types)
        if text is None:
            raise PromptError(
                "a prompt must contain prompt or prompt_token_ids", parameter="prompt"
            )
        return ParsedPrompt(text, self._encode(text, tokenization), scope)

    def _encode(self, text: str, tokenization: Tokenization) -> list[int]:
        if self._tokenizer is None:
            raise PromptError(
                "You cannot pass text prompts when `skip_tokenizer_init=True`; pass token ids",
                parameter="prompt",
            )
        if not _is_unicode(text):
            raise PromptError("the prompt must be valid Unicode", parameter="prompt")
        wants_special, truncation = tokenization.add_special_tokens, tokenization.truncation
        ids = self._tokenizer.encode(text, add_special_tokens=wants_special)
        if truncation is None:
            return ids
        frame = self._tokenizer.special_frame if wants_special else None
        return truncation.kept(ids, frame, self._tokenizer.truncation_side)

    def _check_tokens(self, token_ids: list[int]) -> None:
        count, limit = len(token_ids), self._model_config.max_model_len
        pooling = self._model_config.pooling
        if not count:
            raise PromptError("The decoder prompt cannot be empty", parameter="prompt")
        if pooling is not None:
            check_text(count, pooling, limit)
        elif count > limit:
            raise prompt_too_long(count, limit)
        elif count == limit:
            raise prompt_fills_context(limit)
        self._check_vocabulary(token_ids, "prompt_token_ids")

    def _check_vocabulary(self, token_ids: list[int], parameter: str) -> None:
        vocab_size = self._model_config.vocab_size
        wrong = min(token_ids) if min(token_ids) < 0 else max(token_ids)
        if not 0 <= wrong < vocab_size:
            raise PromptError(
                f"Token id {quoted(wrong)} is out of vocabulary: ids must be from 0 to "
                f"{vocab_size - 1}",
                parameter=parameter,
                value=wrong,
            )


def _cut(token_ids: list[int], tokenization: Tokenization) -> list[int]:
    truncation = tokenization.truncation
    return token_ids if truncation is None else truncation.kept(token_ids)


def _is_unicode(text: str) -> bool:
    """Whether the text has no lone surrogates, which UTF-8 cannot encode."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _as_token_ids(value: Any) -> list[int]:
    if hasattr(value, "tolist"):  # an array
        value = value.tolist()
    if not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray)):
        raise PromptError(
            "a prompt must be a text, a list of token ids, or a dict with prompt or "
            f"prompt_token_ids, got {quoted(value)} ({type(value).__name__})",
            parameter="prompt",
        )
    for token_id in value:
        if type(token_id) is not int:
            raise PromptError(
                f"token ids must be integers, got {quoted(token_id)}",
                parameter="prompt_token_ids",
                value=token_id,
            )
    return list(value)
