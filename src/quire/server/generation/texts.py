"""`TextPrompts`: prompts that are texts, token ids, or tensors in place of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quire.errors import RequestError
from quire.frontend.arguments import located
from quire.frontend.inputs.prompt_embeds import PLACEHOLDER
from quire.frontend.inputs.tokenization import Truncation
from quire.server.generation.prompts import PreparedPrompt, decode_embeds, prompt_ids
from quire.server.generation.request import AnyRequest
from quire.server.generation.request_fields import PROMPT_KINDS
from quire.server.served_model import ServedModel

_IDS_PER_UNIT = 16
"""Token ids that take as long to check as one unit of the pool's work."""
Given = str | list[str] | list[int] | list[list[int]] | list[str | int | list[int]]
"""A text, a list of texts, a list of token ids, or a list of such lists."""


@dataclass(frozen=True, slots=True)
class TextPrompts:
    """The prompts of a request: those of tensors come first."""

    given: Given | None
    tensors: Sequence[str] = ()
    """In base64."""
    add_special_tokens: bool = True
    """Text prompts begin with the model's start token, if it has one."""
    most_tokens: int | None = None
    """Most tokens of a prompt that are kept; -1: what leaves room for one more; None: all."""
    cut_side: Literal["left", "right"] | None = None
    """The end of a longer prompt that is cut off."""

    async def prompts(self, model: ServedModel, asked: AnyRequest) -> list[PreparedPrompt]:
        """The prompts, in order. Raises RequestError."""
        parts = [self.given] if isinstance(self.given, str) else self.given or []
        size = len(parts) // _IDS_PER_UNIT + sum(map(len, self.tensors))
        if parts and not isinstance(parts[0], int):
            sizes = [len(each) for each in parts if isinstance(each, str)]
            model.limits.check_text("prompt", max(sizes, default=0))
            num_ids = sum(len(each) for each in parts if isinstance(each, list))
            size += sum(sizes) + num_ids // _IDS_PER_UNIT
        return await model.pool.run(size, self._prompts, model, asked)

    def _prompts(self, model: ServedModel, asked: AnyRequest) -> list[PreparedPrompt]:
        parts = self._parts()
        copies = max(asked.sampling.get("n", 1), asked.num_samples or 1)
        model.limits.check_prompts(len(parts) + len(self.tensors), copies)
        truncation = Truncation.of(self.most_tokens, self.cut_side, model.limits.max_model_len)
        prompts = self._of_tensors(model, asked)
        for index, part in enumerate(parts):
            if isinstance(part, str):
                with located("prompt", index, len(parts)):
                    token_ids = prompt_ids(model, part, self.add_special_tokens, truncation)
                prompts.append(PreparedPrompt(token_ids, part))
            else:
                token_ids = part if truncation is None else truncation.kept(part)
                prompts.append(PreparedPrompt(token_ids, None))
        return prompts

    def _of_tensors(self, model: ServedModel, asked: AnyRequest) -> list[PreparedPrompt]:
        if self.tensors and asked.reply.echo:
            raise RequestError("Echo is unsupported with prompt embeds.", parameter="echo")
        if self.tensors and self.most_tokens is not None:
            raise RequestError(
                "truncate_prompt_tokens is not supported with prompt_embeds",
                parameter="truncate_prompt_tokens",
            )
        prompts = []
        for index, text in enumerate(self.tensors):
            with located("prompt_embeds", index, len(self.tensors)):
                rows = decode_embeds(model, text)
            prompts.append(PreparedPrompt([PLACEHOLDER] * len(rows), None, embeds=rows))
        return prompts

    def _parts(self) -> list[str | list[int]]:
        given = self.given
        if self.tensors and (given is None or given == ""):
            return []
        if given is None:
            raise RequestError(
                "Either prompt or prompt_embeds must be provided and non-empty.", parameter="prompt"
            )
        if isinstance(given, str):
            return [given]
        if not given:
            raise RequestError("prompt must not be empty", parameter="prompt")
        kind = type(given[0])
        if not all(isinstance(entry, kind) for entry in given):
            raise RequestError(PROMPT_KINDS, parameter="prompt")
        return [given] if kind is int else given  # type: ignore[list-item,return-value]
