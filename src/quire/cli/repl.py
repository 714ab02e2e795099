"""The conversation loop of `quire run` and `quire chat`: prompts, slash commands, streaming.

Uses only the interface `Conversation`, which may be a local engine or a server.
"""

from __future__ import annotations

import base64
import mimetypes
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire.cli import saved_chats
from quire.cli.http_client import SamplingDefaults, ServerError
from quire.cli.mcp.toolbox import MAX_ROUNDS, Toolbox
from quire.cli.terminal import LineEditor, StopOnInterrupt, dim, read_line, say_dim
from quire.errors import RequestError
from quire.images.job import MAX_FILE_BYTES
from quire.images.sources import checked_size
from quire.log.writer import printable, say
from quire.params import SamplingParams
from quire.parsers.events import Content, Event, Message, Reasoning
from quire.suggest import did_you_mean


class ReplyPrinter:
    """Prints one reply.

    On a terminal, reasoning is grey and a blank line follows it. Otherwise it is put between
    `<think>` and `</think>`, so that programs can separate it from the answer.
    """

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._is_reasoning = False
        self._skips_breaks = False

    def show(self, event: Event) -> None:
        """Print the next piece."""
        if isinstance(event, Reasoning):
            text = printable(event.text)
            if not self._is_reasoning:
                self._is_reasoning = True
                text = text.lstrip("\n") if self._is_terminal else f"<think>\n{text}"
            self._write(dim(text) if text else "")
        elif isinstance(event, Content):
            self._end_reasoning()
            text = printable(event.text)
            if self._skips_breaks:
                text = text.lstrip("\n")
                self._skips_breaks = not text
            self._write(text)

    def end(self) -> None:
        """Finish the output: the reply is complete or was stopped."""
        self._end_reasoning()
        self._write("\n")

    def _end_reasoning(self) -> None:
        if self._is_reasoning:
            self._is_reasoning, self._skips_breaks = False, True
            self._write("\n\n" if self._is_terminal else "\n</think>\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


SETTINGS: dict[str, Callable[[str], object]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "presence_penalty": float,
    "max_tokens": int,
    "seed": int,
    "stop": str,
}
"""The settings of `/set`, with a parser for each value."""

RETRIABLE = (RequestError, ServerError)
"""Errors of one message, after which the conversation continues."""

REASONING: dict[str | None, bool | None] = {"on": True, "off": False, "": None, None: None}
"""Values of the reasoning option; None: not set by the user."""

_HELP = """\
  /help, /?            show this
  /reset, /clear       clear the conversation
  /regenerate          answer the last message again
  /save NAME           keep the conversation in a file
  /load [NAME]         go on with a saved conversation (empty: list them)
  /system [TEXT]       set the system prompt (empty: none) and start over
  /set [NAME VALUE]    show the sampling settings, or change one; `/set NAME default` resets it
  /reasoning [on|off]  whether to reason before answers (empty: the model's default)
  /image FILE          add an image to the next message
  /tools               list the tools of --mcp-config
  /stats               show or hide the speed after each answer
  /quit, /bye          quit (Ctrl+D too)
A line that ends with \\ continues on the next one; three double quotes begin and end a message of
several lines. Ctrl+C stops an answer."""

COMMANDS = (
    "/help", "/reset", "/regenerate", "/save", "/load", "/system", "/set", "/reasoning", "/image",
    "/tools", "/stats", "/quit",
)  # fmt: skip


@dataclass(slots=True)
class TokenCounts:
    """Token counts of one answer; 0 if the server did not send them."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0


class Conversation(ABC):
    """The interface to a chat model, with the message history. Owned by the main thread.

    Invariant: in `history` each message of the user is followed by its answer, with rounds of tool
    calls and their results between them. If an answer is stopped, its first part is kept; a failed
    one is not kept.
    """

    def __init__(self, system_prompt: str | None = None) -> None:
        self.system_prompt = system_prompt
        self.settings: dict[str, object] = {}
        """Settings that the user has set."""
        self.defaults: SamplingDefaults | None = None
        """Defaults of other settings; None: unknown."""
        self.reasoning: bool | None = None
        """Whether the model reasons before it answers; None: the chat template's default."""
        self.history: list[dict[str, Any]] = []
        self.images: list[dict[str, Any]] = []
        """The images of the next message, as parts of its content."""
        self.tools: list[dict[str, Any]] = []
        """The tools that the model may call, as a chat request offers them."""
        self.counts = TokenCounts()

    @abstractmethod
    def stream(self, messages: list[dict[str, Any]]) -> Iterator[Event]:
        """Yields the reasoning, the answer and calls of `tools` in pieces and fills `counts`. Calls
        have ids. Closing the generator stops the request."""

    def sampling(self) -> dict[str, object]:
        """The settings to request; the engine or the server adds the model's defaults."""
        return {**(self.defaults.chat if self.defaults else {}), **self.settings}

    def template_variables(self) -> dict[str, bool]:
        """The chat template's variables for reasoning; templates use one of the two names."""
        if self.reasoning is None:
            return {}
        return {"enable_thinking": self.reasoning, "thinking": self.reasoning}

    def messages_with(self, text: str) -> list[dict[str, Any]]:
        """The whole conversation, with the new message last."""
        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        return [*system, *self.history, {"role": "user", "content": self._content(text)}]

    def _content(self, text: str) -> str | list[dict[str, Any]]:
        return [*self.images, {"type": "text", "text": text}] if self.images else text

    def remember(self, text: str, reply: Message, rounds: Iterable[dict[str, Any]] = ()) -> None:
        """Add a message and its reply to the history; between them the rounds of tool calls."""
        message = {"role": "user", "content": self._content(text)}
        self.history += [message, *rounds, answer_message(reply)]
        self.images = []


def answer_message(reply: Message) -> dict[str, Any]:
    """A reply as a message, without its tool calls."""
    answer = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        answer["reasoning"] = reply.reasoning
    return answer


def calls_message(reply: Message) -> dict[str, Any]:
    """A reply as a message with its tool calls."""
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments or "{}"},
        }
        for call in reply.tool_calls
    ]
    return {**answer_message(reply), "tool_calls": calls}


def last_message(history: list[dict[str, Any]]) -> int:
    """The place of the user's last message. Raises RequestError if there is none."""
    for place in range(len(history) - 1, -1, -1):
        if history[place]["role"] == "user":
            return place
    raise RequestError("the conversation has no message to answer again")


@dataclass(slots=True)
class Repl:
    """Reads and answers messages until the user quits."""

    conversation: Conversation
    name: str
    """Name of the history file."""
    show_stats: bool = False
    toolbox: Toolbox | None = None
    """Carries out tool calls; None: the model is offered no tools."""
    _stop: StopOnInterrupt = field(default_factory=StopOnInterrupt)

    def loop(self, greeting: str) -> int:
        """Run until /quit or the end of input. Returns the exit code."""
        say(greeting)
        with LineEditor(self.name, completions):
            while True:
                try:
                    line = read_line("> ")
                except KeyboardInterrupt:
                    say()
                    continue  # at the prompt, Ctrl+C discards the line, as in a shell
                if line is None or line.strip() in ("/quit", "/exit", "/q", "/bye"):
                    return 0
                try:
                    if line.strip() == "/regenerate":
                        self.regenerate()
                    elif line.startswith("/"):
                        say(self.command(line.strip()))
                    elif line.strip():
                        self.say(line)
                except RETRIABLE as error:
                    say(error)

    def say(self, text: str) -> str:
        """Send one message, print the answer as it arrives, and return it."""
        messages, rounds = self.conversation.messages_with(text), list[dict[str, Any]]()
        with self._stop as stop:
            reply = self._answer(messages)
            for _ in range(MAX_ROUNDS):
                if self.toolbox is None or not reply.tool_calls or stop.requested:
                    break
                results, has_stopped = self.toolbox.results(
                    reply.tool_calls, lambda: stop.requested
                )
                rounds += [calls_message(reply), *results]
                if has_stopped:
                    say_dim("[stopped]")
                    reply = Message()
                    break
                reply = self._answer([*messages, *rounds])
            else:
                say_dim(f"[stopped: an answer has at most {MAX_ROUNDS} rounds of tool calls]")
        self.conversation.remember(text, reply, rounds)
        return reply.content

    def _answer(self, messages: list[dict[str, Any]]) -> Message:
        """Send these messages and print the reply as it arrives. Unfinished calls are dropped."""
        begin = time.perf_counter()
        first: float | None = None
        events: list[Event] = []
        printer = ReplyPrinter()
        conversation = self.conversation
        conversation.tools = self.toolbox.offers() if self.toolbox else []
        stream = conversation.stream(messages)
        for event in stream:
            if first is None:
                first = time.perf_counter()
            events.append(event)
            printer.show(event)
            if self._stop.requested:
                say_dim(" [stopped]", end="")
                break
        close = getattr(stream, "close", None)
        if close is not None:
            close()
        reply = Message.of(events)
        reply.tool_calls = [call for call in reply.tool_calls if call.is_complete]
        if reply.content or reply.reasoning or not reply.tool_calls:
            printer.end()
        if self.show_stats and first is not None:
            say_dim(speed_line(conversation.counts, begin, first, time.perf_counter()))
        return reply

    def regenerate(self) -> None:
        """Answer the last message again; the old answer is kept if this fails. Raises
        RequestError if there is no message."""
        conversation = self.conversation
        before, waiting = conversation.history, conversation.images
        place = last_message(before)
        content = before[place]["content"]
        parts = [{"text": content}] if isinstance(content, str) else content
        conversation.history, conversation.images = before[:place], parts[:-1]
        try:
            self.say(parts[-1]["text"])
        except BaseException:
            conversation.history = before
            raise
        finally:
            conversation.images = waiting

    def command(self, line: str) -> str:
        """Execute a slash command and return the text to print."""
        word, _, rest = line.partition(" ")
        conversation = self.conversation
        if word in ("/help", "/?"):
            return _HELP
        if word in ("/save", "/load"):
            return self._keep(word, rest.strip())
        if word in ("/reset", "/clear"):
            conversation.history.clear()
            return dim("the conversation is empty")
        if word == "/system":
            conversation.system_prompt = rest.strip() or None
            conversation.history.clear()
            return dim(f"system prompt: {conversation.system_prompt or 'none'}")
        if word == "/tools":
            return self.toolbox.listing() if self.toolbox else dim("--mcp-config FILE adds tools")
        if word == "/stats":
            self.show_stats = not self.show_stats
            return dim(f"speed is {'shown' if self.show_stats else 'hidden'}")
        if word == "/image":
            conversation.images.append(image_part(rest.strip()))
            return dim(f"{len(conversation.images)} image(s) go with the next message")
        if word == "/set":
            return self._set(rest.split())
        if word == "/reasoning":
            return self._set_reasoning(rest.strip())
        return f"unknown command {word}{did_you_mean(word, COMMANDS)}"

    def _keep(self, word: str, name: str) -> str:
        conversation = self.conversation
        if word == "/save":
            path = saved_chats.save(name, conversation.system_prompt, conversation.history)
            return dim(f"saved in {path}")
        if not name:
            return "\n".join(saved_chats.saved_names()) or dim("no conversation is saved")
        conversation.system_prompt, conversation.history = saved_chats.load(name)
        number = sum(one["role"] == "user" for one in conversation.history)
        return dim(f"{name}: {number} message(s) with their answers")

    def _set_reasoning(self, word: str) -> str:
        if word not in REASONING:
            return f"/reasoning must be on or off, not {word!r}"
        self.conversation.reasoning = REASONING[word]
        return dim(f"reasoning: {word or 'the default of the model'}")

    def _set(self, words: list[str]) -> str:
        settings = self.conversation.settings
        if not words:
            return "\n".join(f"  {name} = {self._value(name)}" for name in SETTINGS)
        name, value = words[0], " ".join(words[1:])
        if name not in SETTINGS:
            return f"unknown setting {name}{did_you_mean(name, SETTINGS)}"
        if value in ("", "default"):
            settings.pop(name, None)
            return dim(f"{name} = {self._value(name)}")
        try:
            wanted: dict[str, Any] = {name: SETTINGS[name](value)}
            SamplingParams(**wanted)
        except RequestError as error:
            return str(error)
        except ValueError:
            return f"{name} must be a number, not {value!r}"
        settings.update(wanted)
        return dim(f"{name} = {settings[name]}")

    def _value(self, name: str) -> str:
        conversation = self.conversation
        if name in conversation.settings:
            return str(conversation.settings[name])
        return (
            conversation.defaults.shown(name) if conversation.defaults else "the server's default"
        )


def image_part(path: str) -> dict[str, Any]:
    """An image file as a part of a message. Raises RequestError if it cannot be read."""
    if not path:
        raise RequestError("the name of an image file must follow, as in /image cat.png")
    try:
        with open(Path(path).expanduser(), "rb") as file:
            data = checked_size(file.read(MAX_FILE_BYTES + 1))
    except (OSError, ValueError) as error:
        raise RequestError(f"the image {path!r} cannot be read: {error}") from None
    kind = mimetypes.guess_type(path)[0] or "image/png"
    url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def completions(line: str) -> list[str]:
    """The possible completions of a line, for the Tab key."""
    command, space, _ = line.partition(" ")
    choices: Iterable[str] = COMMANDS
    if space:
        values: Iterable[str] = {"/set": SETTINGS, "/reasoning": ("on", "off")}.get(command, ())
        if command == "/load":
            values = saved_chats.saved_names()
        choices = (f"{command} {value}" for value in values)
    return [choice for choice in choices if line.startswith("/") and choice.startswith(line)]


def speed_line(counts: TokenCounts, begin: float, first: float, end: float) -> str:
    """A line with the time to first token, and the tokens per second after it."""
    parts = [f"first token {1000 * (first - begin):.0f} ms"]
    if counts.completion > 1 and end > first:
        parts.append(f"{(counts.completion - 1) / (end - first):.1f} tokens/s")
    parts.append(f"{counts.prompt} in ({counts.cached} cached), {counts.completion} out")
    return "[" + ", ".join(parts) + "]"
