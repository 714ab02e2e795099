"""`PluginReader`: reads a reply with the parsers of plug-ins, as `ReplyParser` does with a format.

The reasoning is read first; its parser's content is what the parser of calls gets. Either may be a
format of Quire's. A whole reply, which comes in one piece, is read with the methods for whole
replies. A parser that raises is logged; the rest of the text is content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from quire.log import get_logger
from quire.parsers.events import Content, Event, Reasoning, merged
from quire.parsers.format import ReplyFormat
from quire.parsers.parser import ReplyParser
from quire.vllm.parsers.reasoning_parser import ReasoningParser
from quire.vllm.parsers.records import CallEvents
from quire.vllm.parsers.tool_parser import ToolParser

T = TypeVar("T")
logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a reply."""

    text: str
    token_ids: Sequence[int]
    is_last: bool
    is_cut: bool
    """The model did not end the reply itself."""


class _Text:
    """The text that a parser has had, which is passed to streaming parsers each time."""

    def __init__(self) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self.has_begun = False

    def with_more(self, piece: Piece) -> tuple[str, str, str, list[int], list[int], list[int]]:
        """The arguments of vLLM's streaming methods."""
        before, ids_before = self.text, self.token_ids
        self.text, self.token_ids = before + piece.text, [*ids_before, *piece.token_ids]
        self.has_begun = True
        new = list(piece.token_ids)
        return before, self.text, piece.text, ids_before, self.token_ids, new


class _Guarded:
    """Calls of a plug-in's methods, until one raises."""

    def __init__(self, parser: object) -> None:
        self._name = type(parser).__name__
        self.has_failed = False

    def call(self, method: Callable[..., T], *args: Any) -> T | None:
        if self.has_failed:
            return None
        try:
            return method(*args)
        except BaseException:  # SystemExit would end the server
            self.has_failed = True
            logger.exception("%s failed; what follows of this reply is content", self._name)
            return None


class _ReasoningStage:
    """Divides a text into reasoning and what a parser of calls gets."""

    def __init__(
        self, parser: ReasoningParser, request: Any, prompt_token_ids: Sequence[int]
    ) -> None:
        self._parser = parser
        self._request = request
        self._guard = _Guarded(parser)
        self._seen = _Text()
        ids = list(prompt_token_ids)
        self._guard.call(parser.set_prompt_token_ids, ids)
        self._has_ended = bool(self._guard.call(parser.is_reasoning_end, ids))
        if not self._has_ended:
            self._guard.call(parser.adjust_initial_state_from_prompt, ids)

    def read(self, piece: Piece) -> tuple[str, Piece]:
        if self._has_ended or self._guard.has_failed:
            return "", piece
        is_whole = piece.is_last and not self._seen.has_begun
        reasoning, content, ids = self._whole(piece) if is_whole else self._more(piece)
        if self._guard.has_failed:
            return "", piece
        return reasoning, Piece(content, ids, piece.is_last, piece.is_cut)

    def _whole(self, piece: Piece) -> tuple[str, str, Sequence[int]]:
        call, parser = self._guard.call, self._parser
        reasoning, content = call(parser.extract_reasoning, piece.text, self._request) or ("", "")
        return (
            reasoning or "",
            content or "",
            call(parser.extract_content_ids, list(piece.token_ids)) or [],
        )

    def _more(self, piece: Piece) -> tuple[str, str, Sequence[int]]:
        call, parser = self._guard.call, self._parser
        delta = call(parser.extract_reasoning_streaming, *self._seen.with_more(piece))
        ids: Sequence[int] = []
        is_end = parser.is_reasoning_end_streaming
        if call(is_end, self._seen.token_ids, list(piece.token_ids)):
            self._has_ended = True
            ids = call(parser.extract_content_ids, list(piece.token_ids)) or []
        if delta is None:
            return "", "", ids
        return delta.reasoning or "", delta.content or "", ids or piece.token_ids


class _CallStage:
    """Reads calls of tools in what follows the reasoning."""

    def __init__(self, parser: ToolParser, request: Any) -> None:
        self._parser = parser
        self._request = request
        self._guard = _Guarded(parser)
        self._seen = _Text()
        self.calls = CallEvents()

    def read(self, piece: Piece) -> list[Event]:
        if piece.is_last and not self._seen.has_begun:
            found = self._guard.call(self._parser.extract_tool_calls, piece.text, self._request)
            if found is not None:
                return self.calls.of_whole(found)
        events: list[Event] = []
        if not self._guard.has_failed and (piece.text or piece.token_ids):
            args = self._seen.with_more(piece)
            delta = self._guard.call(
                self._parser.extract_tool_calls_streaming, *args, self._request
            )
            events += self.calls.of_delta(delta)
        if self._guard.has_failed and piece.text:
            events.append(Content(piece.text))
        if piece.is_last:
            rest = self._guard.call(self._parser.get_remaining_unstreamed_args)
            events += self.calls.end(rest or "", is_cut=piece.is_cut)
        return events


class PluginReader:
    """Reads one reply. Not for two threads at once."""

    def __init__(
        self,
        format: ReplyFormat,
        schemas: Mapping[str, Mapping[str, Any]] | None,
        *,
        reasoning: ReasoningParser | None,
        calls: ToolParser | None,
        request: Any,
        prompt_token_ids: Sequence[int],
        is_reasoning: bool,
    ) -> None:
        """`format`: for what no plug-in reads. `schemas`: of the tools; None: no calls are looked
        for."""
        self._reasoning = self._calls = None
        before = ReplyFormat() if reasoning is not None else ReplyFormat(format.reasoning)
        if reasoning is not None:
            self._reasoning = _ReasoningStage(reasoning, request, prompt_token_ids)
        self._before = ReplyParser(before, is_reasoning=is_reasoning)
        if calls is not None and schemas is not None:
            self._calls = _CallStage(calls, request)
        own = ReplyFormat(None, format.tools if calls is None else None)
        self._own = ReplyParser(own, schemas if calls is None else None)
        self._num_chars = 0
        self.reasoning_spans: list[tuple[int, int]] = []
        """Spans of reasoning in the text, to a piece."""

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        return self._own.num_calls if self._calls is None else self._calls.calls.num_calls

    def read(
        self, text: str, token_ids: Sequence[int] = (), *, is_last: bool, is_cut: bool = False
    ) -> list[Event]:
        """Events of the next piece of the reply. A piece that is the first and the last is a whole
        reply."""
        piece = Piece(text, token_ids, is_last, is_cut)
        reasoning, content = self._divided(piece)
        begin, self._num_chars = self._num_chars, self._num_chars + len(text)
        events: list[Event] = []
        if reasoning:
            events.append(Reasoning(reasoning))
            self.reasoning_spans.append((begin, self._num_chars - len(content.text)))
        if self._calls is not None:
            return merged([*events, *self._calls.read(content)])
        return merged([*events, *self._own.read(content.text, is_last=is_last, is_cut=is_cut)])

    def _divided(self, piece: Piece) -> tuple[str, Piece]:
        if self._reasoning is not None:
            return self._reasoning.read(piece)
        events = self._before.read(piece.text, is_last=piece.is_last, is_cut=piece.is_cut)
        reasoning = "".join(one.text for one in events if isinstance(one, Reasoning))
        content = "".join(one.text for one in events if isinstance(one, Content))
        ids = piece.token_ids if content or not reasoning else ()
        return reasoning, Piece(content, ids, piece.is_last, piece.is_cut)
