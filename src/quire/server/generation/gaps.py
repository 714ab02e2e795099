"""Prompts of texts with a gap, which models for code fill: of `/infill`, and with a `suffix`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quire.errors import RequestError
from quire.server.generation.prompts import PreparedPrompt, encode
from quire.server.generation.request import AnyRequest
from quire.server.served_model import ServedModel
from quire.tokenizer import Tokenizer


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
