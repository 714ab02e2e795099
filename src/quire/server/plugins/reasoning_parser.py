"""`ReasoningParser`: a parser of reasoning, as vLLM's base class is; and those that are known.

The class of a format of Quire's reads with that format.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any, ClassVar

from quire.parsers.format import ReplyFormat
from quire.parsers.parser import ReplyParser, parse_whole
from quire.parsers.reasoning.tags import ReasoningTags
from quire.parsers.registry import REASONING_FORMATS
from quire.server.plugins.deltas import delta_of
from quire.server.plugins.loading import import_plugin
from quire.server.plugins.records import DeltaMessage
from quire.server.plugins.registry import ParserRegistry

_OPENED = frozenset({"ling3", "qwen3"})
"""Families whose classes in vLLM take a prompt to end within the reasoning, unless it is off."""


class ReasoningParser:
    """Reads one reply. A subclass has the methods that raise NotImplementedError here."""

    engine_based_streaming: bool = False

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        """`tokenizer`: the model's, as `get_tokenizer()` gives it."""
        del args, kwargs
        self.model_tokenizer = tokenizer

    @cached_property
    def vocab(self) -> dict[str, int]:
        """The tokenizer's tokens and their ids."""
        return dict(self.model_tokenizer.get_vocab())

    @property
    def reasoning_start_str(self) -> str | None:
        """What the reasoning begins with; None: the server knows nothing of it."""
        return None

    @property
    def reasoning_end_str(self) -> str | None:
        """What the reasoning ends with."""
        return None

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Whether these tokens, of a prompt or a reply, end behind the reasoning."""
        raise NotImplementedError(f"{type(self).__name__} has no is_reasoning_end")

    def is_reasoning_end_streaming(
        self,
        input_ids: Sequence[int],
        delta_ids: Iterable[int],  # noqa: ARG002
    ) -> bool:
        """Whether the reasoning ends in `delta_ids`, the last of `input_ids`."""
        return self.is_reasoning_end(input_ids)

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """The tokens behind the reasoning."""
        raise NotImplementedError(f"{type(self).__name__} has no extract_content_ids")

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:  # noqa: ARG002
        """How many of a reply's tokens are reasoning."""
        return 0

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        """The reasoning and the content of a whole reply."""
        raise NotImplementedError(f"{type(self).__name__} has no extract_reasoning")

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        """What more of a text means; None: nothing yet."""
        raise NotImplementedError(f"{type(self).__name__} has no extract_reasoning_streaming")

    def adjust_request(self, request: Any) -> Any:
        """As that of `ToolParser`."""
        return request

    def adjust_initial_state_from_prompt(self, prompt_token_ids: Sequence[int]) -> None:
        """Told once, before a reply that comes in parts."""


class FormatReasoningParser(ReasoningParser):
    """Reads with a format of Quire's."""

    tags: ReasoningTags
    begins_within: bool = False
    """Whether a reply is taken to begin within the reasoning, as a template has opened it."""

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        """`chat_template_kwargs`: of the prompt; with `enable_thinking` or `thinking` False, the
        reply has no reasoning."""
        super().__init__(tokenizer, *args, **kwargs)
        variables = kwargs.get("chat_template_kwargs") or {}
        is_off = any(variables.get(name) is False for name in ("enable_thinking", "thinking"))
        self._format = ReplyFormat(None if is_off else self.tags)
        self._parser: ReplyParser | None = None

    @property
    def reasoning_start_str(self) -> str | None:
        """The format's begin."""
        return self.tags.begin

    @property
    def reasoning_end_str(self) -> str | None:
        """The format's end."""
        return self.tags.end

    def adjust_request(self, request: Any) -> Any:
        """With the special tokens, which are the marks of many models."""
        request.skip_special_tokens = False
        return request

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """By their text."""
        text = self._text(input_ids)
        end = max(text.rfind(mark) for mark in self.tags.ends)
        return end > max(text.rfind(mark) for mark in self.tags.begins)

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """The tokens behind the one that completes the first end."""
        ids = list(input_ids)

        def has_end(num: int) -> bool:
            text = self._text(ids[:num])
            return any(one in text for one in self.tags.ends)

        return ids[bisect_left(range(len(ids) + 1), True, key=has_end) :]

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        """Tokens up to the end, without the marks."""
        ids = list(token_ids)
        num = len(ids) - len(self.extract_content_ids(ids))
        marks = (*self.tags.begins, *self.tags.ends)
        return sum(self._text([one]).strip() not in marks for one in ids[:num])

    def extract_reasoning(
        self,
        model_output: str,
        request: Any,  # noqa: ARG002
    ) -> tuple[str | None, str | None]:
        """None for what there is none of. A text with an end alone begins within the reasoning,
        which the prompt has opened."""
        ends = [at for one in self.tags.ends if (at := model_output.find(one)) >= 0]
        before = model_output[: min(ends)] if ends else ""
        is_open = bool(ends) and not any(one in before for one in self.tags.begins)
        is_reasoning = is_open or self.begins_within
        message = parse_whole(self._format, model_output, is_reasoning=is_reasoning)
        return message.reasoning or None, message.content or None

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],  # noqa: ARG002
        current_token_ids: Sequence[int],  # noqa: ARG002
        delta_token_ids: Sequence[int],  # noqa: ARG002
    ) -> DeltaMessage | None:
        """Without a text before it, `delta_text` begins a new reply."""
        if self._parser is None or (not previous_text and current_text == delta_text):
            self._parser = ReplyParser(self._format, is_reasoning=self.begins_within)
        return delta_of(self._parser.feed(delta_text))

    def _text(self, token_ids: Sequence[Any]) -> str:
        """Of tokens, which may also be given as texts."""
        ids = list(token_ids)
        texts = [one for one in ids if isinstance(one, str)]
        return "".join(texts) if texts else str(self.model_tokenizer.decode(ids))


class ReasoningParserManager(ParserRegistry):
    """All parsers of reasoning by name: those of plug-ins, and the formats of Quire."""

    base = ReasoningParser
    kind = "Reasoning parser"
    given: ClassVar[dict[str, type]] = {}
    reasoning_parsers = given
    lazy_parsers: ClassVar[dict[str, tuple[str, str]]] = {}
    imported: ClassVar[list[ModuleType]] = []
    _own: ClassVar[dict[str, type[FormatReasoningParser]]] = {}

    @classmethod
    def own(cls, name: str) -> type[FormatReasoningParser] | None:
        """The class of a format of Quire's; the same each time."""
        if name not in REASONING_FORMATS:
            return None
        if name not in cls._own:
            title = f"{name.title().replace('_', '')}ReasoningParser"
            tags = REASONING_FORMATS[name]
            begins_within = tags.is_implied or name in _OPENED
            values = {"tags": tags, "begins_within": begins_within}
            cls._own[name] = type(title, (FormatReasoningParser,), values)
        return cls._own[name]

    @classmethod
    def own_names(cls) -> Iterable[str]:
        """The names of `--reasoning-parser`."""
        return REASONING_FORMATS

    @classmethod
    def get_reasoning_parser(cls, name: str) -> type[ReasoningParser]:
        """The class with this name. Raises KeyError."""
        return cls.get(name)

    @classmethod
    def import_reasoning_parser(cls, plugin_path: str) -> None:
        """Runs a file, which registers its parsers. Raises ConfigError."""
        cls.imported.append(import_plugin(plugin_path, "reasoning_parser_plugin"))


def __getattr__(name: str) -> type[ReasoningParser]:
    """`own_NAME` is the class of a format; the modules of vLLM that have one take it from here."""
    found = ReasoningParserManager.own(name.removeprefix("own_"))
    if not name.startswith("own_") or found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
