"""The prompt of a text with a gap, by the marks that the tokenizer has for it."""

from __future__ import annotations

from dataclasses import dataclass

from quire.errors import RequestError
from quire.server.apis.llama_server.schema import InfillRequest
from quire.tokenizer import Tokenizer


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


def infill_ids(tokenizer: Tokenizer, asked: InfillRequest) -> tuple[list[int], list[int]]:
    """The prompt's token ids, and the ids that end the gap's text. Raises RequestError if the
    tokenizer lacks the marks."""
    marks = next((one for one in _MARKS if _has(tokenizer, one)), None)
    if marks is None:
        raise RequestError(
            "this model has no tokens for a text with a gap; use a model for code, such as "
            "Qwen2.5-Coder, or /completion",
            parameter="model",
        )
    ids = _beginning(tokenizer)
    separator = None if marks.file is None else tokenizer.token_to_id(marks.file)
    for extra in asked.input_extra or ():
        if separator is not None:
            ids.append(separator)
        ids += _text(tokenizer, f"{extra.filename}\n{extra.text}\n")
    if asked.input_extra and separator is not None:
        ids += [separator, *_text(tokenizer, "filename\n")]
    before = [*_mark(tokenizer, marks.prefix), *_text(tokenizer, asked.input_prefix)]
    after = [*_mark(tokenizer, marks.suffix), *_text(tokenizer, asked.input_suffix)]
    ids += after + before if marks.is_suffix_first else before + after
    ids += [*_mark(tokenizer, marks.middle), *_text(tokenizer, asked.prompt)]
    ends = [*_mark(tokenizer, marks.prefix), *_mark(tokenizer, marks.suffix)]
    return ids, ends if separator is None else [*ends, separator]


def _has(tokenizer: Tokenizer, marks: _Marks) -> bool:
    names = (marks.prefix, marks.suffix, marks.middle)
    return all(tokenizer.token_to_id(name) is not None for name in names if name)


def _mark(tokenizer: Tokenizer, name: str) -> list[int]:
    found = tokenizer.token_to_id(name) if name else None
    return [] if found is None else [found]


def _text(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False) if text else []


def _beginning(tokenizer: Tokenizer) -> list[int]:
    """The model's start token, where its tokenizer adds one."""
    first = tokenizer.encode("a", add_special_tokens=True)[:1]
    return first if first == [tokenizer.bos_token_id] else []
