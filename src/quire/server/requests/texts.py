"""`TextPrompts`: prompts that are texts, token ids, or tensors in place of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from quire.errors import RequestError
from quire.frontend.arguments import located
from quire.frontend.inputs.prompt_embeds import PLACEHOLDER
from quire.frontend.inputs.tokenization import Truncation
from quire.server.requests.embeds import decode_embeds
from quire.server.requests.fields import PROMPT_KINDS
from quire.server.requests.prompts import PreparedPrompt, encode, prompt_ids
from quire.server.requests.request import AnyRequest
from quire.server.served_model import ServedModel
from quire.tokenizer import Tokenizer

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
        truncation = None
        if self.most_tokens is not None:
            limit = model.limits.max_model_len
            truncation = Truncation.of(self.most_tokens, self.cut_side, limit)
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


@dataclass(frozen=True, slots=True)
class Gap:
    """A text with a gap, and what else the model may see."""

    before: str
    after: str
    begin: str = ""
    """How the gap's text begins."""
    files: Sequence[tuple[str, str]] = ()
    """Names and texts of other files."""

    @property
    def size(self) -> int:
        """Characters of all texts."""
        names = sum(len(name) + len(text) for name, text in self.files)
        return len(self.before) + len(self.after) + len(self.begin) + names

    async def prompts(self, model: ServedModel, asked: AnyRequest) -> list[PreparedPrompt]:
        """The one prompt; its reply ends where the gap does. Raises RequestError."""
        model.limits.check_text("prompt", self.size)
        copies = max(asked.sampling.get("n", 1), asked.num_samples or 1)
        model.limits.check_prompts(1, copies)
        ids, ends = await model.pool.run(self.size, gap_prompt, model, self)
        return [PreparedPrompt(ids, None, end_token_ids=ends)]


@dataclass(frozen=True, slots=True)
class _Marks:
    """Names of the tokens before the text before the gap, before the text after it, and where the
    gap's text begins."""

    prefix: str
    suffix: str
    middle: str
    is_suffix_first: bool = False
    file: str | None = None
    """Before the name of another file."""


_MARKS = (
    _Marks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", file="<|file_sep|>"),
    _Marks("<fim_prefix>", "<fim_suffix>", "<fim_middle>", file="<file_sep>"),
    _Marks("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    _Marks("▁<PRE>", "▁<SUF>", "▁<MID>"),
    _Marks("<PRE>", "<SUF>", "<MID>"),
    _Marks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    _Marks("[PREFIX]", "[SUFFIX]", "[MIDDLE]", is_suffix_first=True),
    _Marks("[PREFIX]", "[SUFFIX]", "", is_suffix_first=True),
)
"""Sources: tokenizers of Qwen-Coder, CodeGemma, StarCoder, Granite, SantaCoder, CodeLlama,
DeepSeek-Coder, Codestral."""


def gap_prompt(model: ServedModel, gap: Gap) -> tuple[list[int], list[int]]:
    """The prompt's token ids, and the ids that end the gap's text. Raises RequestError if the
    tokenizer lacks the marks, or a text is too long."""
    return gap_ids(model.tokenizer(), gap, lambda text: encode(model, text, False))


def gap_ids(
    tokenizer: Tokenizer, gap: Gap, ids_of: Callable[[str], list[int]]
) -> tuple[list[int], list[int]]:
    """The same, with token ids of texts as `ids_of` finds them."""
    marks = next((one for one in _MARKS if _has(tokenizer, one)), None)
    if marks is None:
        raise RequestError(
            "this model has no tokens for a text with a gap; use a model for code, such as "
            "Qwen2.5-Coder, or continue a text without suffix",
            parameter="suffix",
        )
    first = tokenizer.encode("a", add_special_tokens=True)[:1]
    ids = first if first == [tokenizer.bos_token_id] else []
    separator = None if marks.file is None else tokenizer.token_to_id(marks.file)
    for name, text in gap.files:
        if separator is not None:
            ids.append(separator)
        ids += ids_of(f"{name}\n{text}\n")
    if gap.files and separator is not None:
        ids += [separator, *ids_of("filename\n")]
    before = [*_mark(tokenizer, marks.prefix), *ids_of(gap.before)]
    after = [*_mark(tokenizer, marks.suffix), *ids_of(gap.after)]
    ids += after + before if marks.is_suffix_first else before + after
    ids += [*_mark(tokenizer, marks.middle), *ids_of(gap.begin)]
    ends = [*_mark(tokenizer, marks.prefix), *_mark(tokenizer, marks.suffix)]
    return ids, ends if separator is None else [*ends, separator]


def _has(tokenizer: Tokenizer, marks: _Marks) -> bool:
    names = (marks.prefix, marks.suffix, marks.middle)
    return all(tokenizer.token_to_id(name) is not None for name in names if name)


def _mark(tokenizer: Tokenizer, name: str) -> list[int]:
    found = tokenizer.token_to_id(name) if name else None
    return [] if found is None else [found]
