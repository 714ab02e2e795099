"""`ReasoningParser`: a parser of reasoning, as vLLM's base class is; and those that are known.

The class of one of Quire's formats parses with that format.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from quire.chat.job import VARIABLES
from quire.parsers.format import ReplyFormat
from quire.parsers.parser import ReplyParser, parse_whole
from quire.parsers.reasoning_tags import ReasoningTags
from quire.parsers.registry import REASONING_FORMATS, reply_format
from quire.parsers.tool_format import ToolFormat
from quire.vllm.parsers.families import Beginning, FamilyRules, Stream, calls_as_text, rules_of
from quire.vllm.parsers.records import DeltaMessage, delta_of
from quire.vllm.parsers.registry import ParserRegistry

_NO_TOOLS: Mapping[str, Mapping[str, Any]] = {}


class ReasoningParser:
    """Reads one reply. A subclass has the methods that raise NotImplementedError here."""

    engine_based_streaming: bool = False

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        """`tokenizer`: the model's, as `get_tokenizer()` gives it."""
        self.model_tokenizer = tokenizer

    @cached_property
    def vocab(self) -> dict[str, int]:
        """The tokenizer's tokens and their ids."""
        return dict(self.model_tokenizer.get_vocab())

    @property
    def reasoning_start_str(self) -> str | None:
        """The mark that begins reasoning; None if it is unknown."""
        return None

    @property
    def reasoning_end_str(self) -> str | None:
        """The mark that ends reasoning."""
        return None

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Whether the reasoning has ended within these tokens of a prompt or a reply."""
        raise NotImplementedError(f"{type(self).__name__} has no is_reasoning_end")

    def is_reasoning_end_streaming(
        self, input_ids: Sequence[int], delta_ids: Iterable[int]
    ) -> bool:
        """Whether the reasoning ends in `delta_ids`, the last of `input_ids`."""
        return self.is_reasoning_end(input_ids)

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """The tokens after the reasoning."""
        raise NotImplementedError(f"{type(self).__name__} has no extract_content_ids")

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        """Number of a reply's tokens that are reasoning."""
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
        """The delta of the next text; None: nothing to send yet."""
        raise NotImplementedError(f"{type(self).__name__} has no extract_reasoning_streaming")

    def adjust_request(self, request: Any) -> Any:
        """The same as `ToolParser.adjust_request`."""
        return request

    def set_prompt_token_ids(self, prompt_token_ids: Sequence[int]) -> None:
        """Called once before a reply is read."""

    def adjust_initial_state_from_prompt(self, prompt_token_ids: Sequence[int]) -> None:
        """Called once before a streamed reply."""


class FormatReasoningParser(ReasoningParser):
    """Parses with one of Quire's formats."""

    tags: ReasoningTags
    calls: ToolFormat | None = None
    """Ends reasoning that the model did not end; its calls are text."""
    rules: FamilyRules = rules_of("")

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        """The template variables of the prompt tell whether the reply begins within the
        reasoning, as vLLM's class of the family has it (`families/beginnings.py`)."""
        super().__init__(tokenizer, *args, **kwargs)
        given = kwargs.get(VARIABLES) or {}
        effort = given.get("reasoning_effort") or kwargs.get("reasoning_effort")
        variables = {**given, "reasoning_effort": effort}
        self._beginning = self.rules.beginning(variables, self.tags.is_implied)
        self._format = self._format_of_reply()
        self._tools = None if self._format.tools is None else _NO_TOOLS
        self._stream = Stream()

    @property
    def reasoning_start_str(self) -> str | None:
        return self.tags.begin

    @property
    def reasoning_end_str(self) -> str | None:
        return self.tags.end

    @property
    def start_token_id(self) -> int | None:
        """Token id of the begin mark, if it is a token."""
        return self.vocab.get(self.tags.begin)

    @property
    def end_token_id(self) -> int | None:
        """Token id of the end mark, if it is a token."""
        return self.vocab.get(self.tags.end)

    think_start_token_id = start_token_id
    think_end_token_id = end_token_id
    """Other names of these, which some families have."""

    def adjust_request(self, request: Any) -> Any:
        """Keeps special tokens, which are the marks of many models."""
        request.skip_special_tokens = False
        return request

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Decides by the text of the tokens."""
        if self._beginning is Beginning.OFF or self.rules.is_always_over:
            return True
        text = self._text(input_ids)
        end = max(text.rfind(mark) for mark in self.tags.ends)
        begin = max(text.rfind(mark) for mark in self.tags.begins)
        return end > begin or (begin < 0 and self.rules.is_over_without)

    def is_reasoning_end_streaming(
        self, input_ids: Sequence[int], delta_ids: Iterable[int]
    ) -> bool:
        """By the text of `input_ids`; where only a begin begins reasoning, also without one."""
        if self.is_reasoning_end(input_ids):
            return True
        text = self._text(input_ids)
        marks = (*self.tags.begins, *self.tags.ends)
        is_open = not text or any(mark.startswith(text) for mark in marks)
        has_begin = any(mark in text for mark in self.tags.begins)
        return self._beginning is Beginning.BY_BEGIN and not is_open and not has_begin

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """The tokens after the one that completes the first end mark."""
        ids = list(input_ids)
        if self._beginning is Beginning.OFF or (
            self._beginning is Beginning.BY_BEGIN and not self._has_mark(self._text(ids))
        ):
            return ids

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

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        """None for what there is none of. A text with an end alone begins within the reasoning,
        which the prompt has opened."""
        is_reasoning = self._beginning is Beginning.WITHIN or (
            self._beginning is Beginning.AS_WRITTEN and self._has_end_alone(model_output)
        )
        message = parse_whole(self._format, model_output, self._tools, is_reasoning=is_reasoning)
        _, _, after = model_output.partition(self.tags.end)
        if self.rules.moves_reasoning(request, after):
            return message.content or None, message.reasoning or None
        is_text = self.rules.has_empty and self._beginning is Beginning.WITHIN
        return message.reasoning if is_text else message.reasoning or None, message.content or None

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        """Without a text before it, `delta_text` begins a new reply."""
        events, _ = self._stream.feed(self._new_parser, previous_text, current_text, delta_text)
        if self.tags.keeps_space and self._stream.parser is not None:
            events += self._stream.parser.keep_reasoning_space()
        return delta_of(events)

    def _new_parser(self) -> ReplyParser:
        is_reasoning = self._beginning is Beginning.WITHIN
        return ReplyParser(self._format, self._tools, is_reasoning=is_reasoning)

    def _format_of_reply(self) -> ReplyFormat:
        if self._beginning is Beginning.OFF:
            return ReplyFormat()
        format = reply_format(self.tags, None)
        return ReplyFormat(self.tags, self.calls) if type(format) is ReplyFormat else format

    def _has_mark(self, text: str) -> bool:
        return any(mark in text for mark in (*self.tags.begins, *self.tags.ends))

    def _has_end_alone(self, text: str) -> bool:
        ends = [at for one in self.tags.ends if (at := text.find(one)) >= 0]
        before = text[: min(ends)] if ends else ""
        return bool(ends) and not any(one in before for one in self.tags.begins)

    def _text(self, token_ids: Sequence[int | str]) -> str:
        """The text of tokens, which may also be given as texts."""
        texts = [one for one in token_ids if isinstance(one, str)]
        return "".join(texts) if texts else str(self.model_tokenizer.decode(token_ids))


class ReasoningParserManager(ParserRegistry):
    """All parsers of reasoning by name: those of plug-ins, and the formats of Quire."""

    base = ReasoningParser
    kind = "Reasoning parser"
    formats = REASONING_FORMATS
    option = "reasoning_parser_plugin"

    @classmethod
    def make(cls, name: str) -> type[FormatReasoningParser]:
        tags = REASONING_FORMATS[name]
        values = {"tags": tags, "calls": calls_as_text(name, tags), "rules": rules_of(name)}
        title = f"{name.title().replace('_', '')}ReasoningParser"
        return type(title, (FormatReasoningParser,), values)

    @classmethod
    def get_reasoning_parser(cls, name: str) -> type[ReasoningParser]:
        """The class with this name. Raises KeyError."""
        return cls.get(name)

    @classmethod
    def import_reasoning_parser(cls, plugin_path: str) -> None:
        """Runs a file, which registers its parsers. Raises ConfigError."""
        cls.run_file(plugin_path)


__getattr__ = ReasoningParserManager.attribute


class BaseThinkingReasoningParser(ReasoningParser):
    """Reasoning between two tokens. A subclass has the properties `start_token`, `end_token`."""

    start_token: str
    end_token: str

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        """Raises ValueError without the two texts, RuntimeError if they are not tokens."""
        super().__init__(tokenizer, *args, **kwargs)
        if not tokenizer:
            raise ValueError(f"the model tokenizer must be passed to {type(self).__name__}")
        if not self.start_token or not self.end_token:
            raise ValueError("start_token and end_token must be defined in subclasses")
        begin, end = self.vocab.get(self.start_token), self.vocab.get(self.end_token)
        if begin is None or end is None:
            raise RuntimeError(
                f"{type(self).__name__} reasoning parser could not locate think start/end tokens "
                f"in the tokenizer: {self.start_token} and {self.end_token}"
            )
        self.start_token_id, self.end_token_id = begin, end

    @property
    def reasoning_start_str(self) -> str | None:
        return self.start_token

    @property
    def reasoning_end_str(self) -> str | None:
        return self.end_token

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Whether the last of the two tokens is the end."""
        marks = (self.start_token_id, self.end_token_id)
        last = next((one for one in reversed(input_ids) if one in marks), None)
        return last == self.end_token_id

    def is_reasoning_end_streaming(
        self, input_ids: Sequence[int], delta_ids: Iterable[int]
    ) -> bool:
        """Whether the end is among the new tokens."""
        return self.end_token_id in delta_ids

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """Tokens after the first end."""
        ids = list(input_ids)
        return ids[ids.index(self.end_token_id) + 1 :] if self.end_token_id in ids else []

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        """The begin may be missing; without an end all is reasoning."""
        before, begin, after = model_output.partition(self.start_token)
        reasoning, end, content = (after if begin else before).partition(self.end_token)
        return reasoning, (content or None) if end else None

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        """Without a begin all is content, as in vLLM: subclasses decide otherwise."""
        marks = (self.start_token_id, self.end_token_id)
        if len(delta_token_ids) == 1 and delta_token_ids[0] in marks:
            return None
        if self.end_token_id in previous_token_ids or self.start_token_id not in current_token_ids:
            return DeltaMessage(content=delta_text)
        text = delta_text
        if self.start_token_id in delta_token_ids:
            text = text.partition(self.start_token)[2]
        if self.end_token_id not in delta_token_ids:
            return DeltaMessage(reasoning=text)
        reasoning, _, content = text.partition(self.end_token)
        return DeltaMessage(reasoning=reasoning, content=content or None)

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        """Tokens between the two; they may be nested."""
        count = depth = 0
        for token_id in token_ids:
            if token_id == self.start_token_id:
                depth += 1
            elif token_id == self.end_token_id:
                depth = max(0, depth - 1)
            elif depth:
                count += 1
        return count
