"""Items of a response while they grow, and their stream events."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import msgspec

from quire.server.apis.responses import reply_schema as events
from quire.server.apis.responses.items_schema import (
    CustomToolCall,
    FunctionCall,
    ItemStatus,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from quire.server.apis.responses.tools import CUSTOM_INPUT, OfferedTool
from quire.server.conversation.argument_text import InputText
from quire.server.json_pieces import JsonList


def new_id(prefix: str) -> str:
    """A random id that cannot be guessed."""
    return f"{prefix}_{secrets.token_hex(16)}"


class OpenItem(ABC):
    """An item; text is added to it until it ends."""

    def __init__(self, prefix: str, output_index: int) -> None:
        self.id = new_id(prefix)
        self.num_chars = 0
        self.status: ItemStatus = "in_progress"
        self._index = output_index
        self._texts: list[str] = []

    @abstractmethod
    def item(self) -> OutputItem:
        """The item with its present contents."""

    @abstractmethod
    def _begin_parts(self) -> Iterator[events.StreamEvent]: ...

    @abstractmethod
    def _add(self, text: str) -> Iterator[events.StreamEvent]: ...

    @abstractmethod
    def _end_parts(self) -> Iterator[events.StreamEvent]: ...

    def begin(self) -> Iterator[events.StreamEvent]:
        """Announces the empty item."""
        yield events.OutputItemAdded(output_index=self._index, item=self.item())
        yield from self._begin_parts()

    def add(self, text: str) -> Iterator[events.StreamEvent]:
        """Adds text and announces it."""
        self._texts.append(text)
        self.num_chars += len(text)
        yield from self._add(text)

    def end(self, status: ItemStatus) -> Iterator[events.StreamEvent]:
        """Announces the complete item."""
        self.status = status
        yield from self._end_parts()
        yield events.OutputItemDone(output_index=self._index, item=self.item())

    @property
    def text(self) -> str:
        """The item's text so far."""
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return self._texts[0] if self._texts else ""

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self._index}


class OpenReasoning(OpenItem):
    """Reasoning."""

    def __init__(self, output_index: int) -> None:
        super().__init__("rs", output_index)

    def item(self) -> ReasoningItem:
        has_begun = self.status != "in_progress"
        content = [ReasoningText(text=self.text)] if has_begun else []
        return ReasoningItem(id=self.id, status=self.status, content=content)

    def _begin_parts(self) -> Iterator[events.StreamEvent]:
        yield events.ContentPartAdded(**self._place, part=ReasoningText(text=""))

    def _add(self, text: str) -> Iterator[events.StreamEvent]:
        yield events.ReasoningTextDelta(**self._place, delta=text)

    def _end_parts(self) -> Iterator[events.StreamEvent]:
        yield events.ReasoningTextDone(**self._place, text=self.text)
        yield events.ContentPartDone(**self._place, part=ReasoningText(text=self.text))


class OpenMessage(OpenItem):
    """A message, with the log-probabilities of its tokens if they were asked for."""

    def __init__(self, output_index: int) -> None:
        super().__init__("msg", output_index)
        self._logprobs = JsonList()
        self.new_logprobs: JsonList | None = None
        """Log-probabilities of the text that is added next."""

    def item(self) -> OutputMessage:
        content = [] if self.status == "in_progress" else [self._part()]
        return OutputMessage(id=self.id, status=self.status, content=content)

    def _part(self) -> OutputText:
        return OutputText(text=self.text, logprobs=self._logprobs.as_field())

    def _begin_parts(self) -> Iterator[events.StreamEvent]:
        yield events.ContentPartAdded(**self._place, part=OutputText(text=""))

    def _add(self, text: str) -> Iterator[events.StreamEvent]:
        new, self.new_logprobs = self.new_logprobs or JsonList(), None
        self._logprobs.join(new)
        yield events.OutputTextDelta(**self._place, delta=text, logprobs=new.as_field())

    def _end_parts(self) -> Iterator[events.StreamEvent]:
        logprobs = self._logprobs
        yield events.OutputTextDone(**self._place, text=self.text, logprobs=logprobs.as_field())
        yield events.ContentPartDone(**self._place, part=self._part())


class OpenCall(OpenItem):
    """A call of a function."""

    def __init__(self, output_index: int, name: str, call_id: str, tool: OfferedTool | None):
        """`name`: as the model wrote it. `tool`: None if it is not offered."""
        super().__init__("fc", output_index)
        self._call_id = call_id
        self._name = name if tool is None else tool.name
        self._namespace = None if tool is None else tool.namespace

    def item(self) -> FunctionCall:
        return FunctionCall(
            id=self.id,
            call_id=self._call_id,
            name=self._name,
            namespace=self._namespace,
            arguments=self.text,
            status=self.status,
        )

    def _begin_parts(self) -> Iterator[events.StreamEvent]:
        yield from ()

    def _add(self, text: str) -> Iterator[events.StreamEvent]:
        yield events.ArgumentsDelta(**self._place, delta=text)

    def _end_parts(self) -> Iterator[events.StreamEvent]:
        yield events.ArgumentsDone(**self._place, name=self._name, arguments=self.text)


class OpenCustomCall(OpenItem):
    """A call of a custom tool. Its text is an argument, and so it is sent when it is complete."""

    def __init__(self, output_index: int, call_id: str, tool: OfferedTool):
        super().__init__("ctc", output_index)
        self._call_id = call_id
        self._tool = tool

    def item(self) -> CustomToolCall:
        return CustomToolCall(
            id=self.id,
            call_id=self._call_id,
            name=self._tool.name,
            namespace=self._tool.namespace,
            input="" if self.status == "in_progress" else custom_input(self.text),
            status=self.status,
        )

    def _begin_parts(self) -> Iterator[events.StreamEvent]:
        yield from ()

    def _add(self, _: str) -> Iterator[events.StreamEvent]:
        yield from ()

    def _end_parts(self) -> Iterator[events.StreamEvent]:
        text = custom_input(self.text)
        yield events.CustomInputDelta(**self._place, delta=text)
        yield events.CustomInputDone(**self._place, input=text)


class _Arguments(msgspec.Struct):
    input: str


def custom_input(arguments: str) -> str:
    """The text in these arguments, as far as it goes if they were cut. Arguments that have none are
    the text themselves."""
    cut = InputText()
    for text in (arguments, cut.feed(arguments) + cut.close()):
        try:
            return msgspec.json.decode(text, type=_Arguments).input
        except msgspec.DecodeError:
            continue
    is_before_text = f'{{"{CUSTOM_INPUT}":"'.startswith("".join(arguments.split()))
    return "" if is_before_text else arguments
