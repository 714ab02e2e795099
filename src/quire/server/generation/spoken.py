"""Speech to text in a server: the transcriber of a model, and the run of one transcription;
`with_words`: sounds in a chat with a model that hears none become their words, by the model that
--transcription-model names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec
import msgspec.structs

from quire.chat.job import given_of_part, kind_of_part
from quire.errors import EngineGenerateError, RequestError
from quire.images.config import ImagesConfig
from quire.images.job import MAX_REQUEST_SECONDS
from quire.images.sources import ImageSources
from quire.server.context import ServerContext
from quire.server.conversation.conversation import Conversation
from quire.server.conversation.message import ChatMessage, ContentPart
from quire.server.requests.request import AnyRequest
from quire.server.served_model import ServedModel
from quire.transcription.records import Segment, Transcript, TranscriptionOptions

if TYPE_CHECKING:
    from quire.server.generation.run import Deadline
    from quire.server.served_model import ServedModel
    from quire.transcription.transcriber import Items, Transcriber


def transcriber_of(model: ServedModel, salt: str | None = None) -> Transcriber | None:
    """The transcriber of a model; None: it is not of Whisper's kind. Requests with the same `salt`
    share what is cached of sounds. Raises HttpError 503 while the model is being loaded."""
    if model.transcriber is None:
        from quire.transcription.engine import transcriber_for  # for such models alone

        model.transcriber = transcriber_for(model.loaded_engine())
    return None if model.transcriber is None else model.transcriber.within(salt)


class SpeechRun:
    """The transcription of one sound, in a task of its own. `close` ends it at any time."""

    def __init__(self, items: Items, deadline: Deadline) -> None:
        self._deadline = deadline
        self._queue: asyncio.Queue[Transcript | Segment | None] = asyncio.Queue()
        """None: there are no more."""
        self._task = asyncio.get_running_loop().create_task(self._read(items))
        self._task.add_done_callback(self._on_done)

    async def _read(self, items: Items) -> None:
        async with aclosing(items):
            async for item in items:
                self._queue.put_nowait(item)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # asyncio logs one that is not read; a client that left reads none
        self._queue.put_nowait(None)

    async def header(self) -> Transcript:
        """The first item, to be awaited once. Raises what the transcription raises."""
        first = await self._next()
        if not isinstance(first, Transcript):
            raise EngineGenerateError("the transcription ended before it began")
        return first

    async def segments(self) -> AsyncIterator[Segment]:
        """The segments; they end early once the run is closed."""
        while isinstance(item := await self._next(), Segment):
            yield item

    async def _next(self) -> Transcript | Segment | None:
        """The next item; None at the end. Raises HttpError 503 at the deadline."""
        seconds = self._deadline.at - asyncio.get_running_loop().time()
        try:
            item = await asyncio.wait_for(self._queue.get(), max(0.0, seconds))
        except asyncio.TimeoutError:
            self.close()
            raise self._deadline.error() from None
        if item is None and not self._task.cancelled():
            self._task.result()
        return item

    def close(self) -> None:
        """Ends the transcription, which frees what it uses. Idempotent."""
        self._task.cancel()


MOST_KEPT = 256
"""Sounds whose words are kept."""
_MOST_CHARS = 1 << 16
"""Longest words that are kept."""


async def with_words(
    context: ServerContext,
    model: ServedModel,
    asked: AnyRequest,
    salt: str | None,
    deadline: Deadline,
) -> None:
    """Replaces the sounds in the request's conversations, if the request's model hears none. Called
    if the operator named a model for that. `salt`: as for `transcriber_of`. Raises RequestError,
    HttpError."""
    name, source = context.args.transcription_model, asked.prompt
    chats = [source] if isinstance(source, Conversation) else source
    if name is None or model.config.model.takes("audio") or not isinstance(chats, list):
        return
    if not any(_has_sounds(chat.messages) for chat in chats):
        return
    async with _loaded(context, context.target(name).model) as hearing:
        transcriber = transcriber_of(hearing, salt)
        if transcriber is None:
            raise RequestError(f"the server's transcription_model {name} is not of Whisper's kind")
        config = hearing.config.model.images or ImagesConfig({})
        sources = ImageSources.of(config, MAX_REQUEST_SECONDS)
        words = _Words(transcriber, sources, deadline, context.heard, salt)
        made = [replace(chat, messages=await words.messages(chat.messages)) for chat in chats]
    asked.prompt = made[0] if isinstance(source, Conversation) else made


@asynccontextmanager
async def _loaded(context: ServerContext, model: ServedModel) -> AsyncIterator[ServedModel]:
    if context.fleet is None:
        yield model
        return
    await context.fleet.acquire(model)
    try:
        yield model
    finally:
        context.fleet.release(model)


def _has_sounds(messages: Sequence[ChatMessage]) -> bool:
    contents = [one.content for one in messages if isinstance(one.content, list)]
    return any(_is_sound(part) for content in contents for part in content)


def _is_sound(part: str | ContentPart) -> bool:
    return isinstance(part, ContentPart) and kind_of_part(msgspec.to_builtins(part)) == "audio"


class _Words:
    """Finds the words of the sounds of one request."""

    def __init__(
        self,
        transcriber: Transcriber,
        sources: ImageSources,
        deadline: Deadline,
        kept: dict[tuple[str | None, bytes], str],
        salt: str | None,
    ) -> None:
        """`kept`: words of earlier sounds, the last ones last."""
        self._transcriber = transcriber
        self._sources = sources
        self._deadline = deadline
        self._kept, self._salt = kept, salt

    async def messages(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """The messages with words in place of sounds."""
        found = []
        for index, message in enumerate(messages):
            if isinstance(message.content, list):
                content = [
                    await self._part(part, f"messages[{index}].content[{place}]")
                    for place, part in enumerate(message.content)
                ]
                message = msgspec.structs.replace(message, content=content)
            found.append(message)
        return found

    async def _part(self, part: str | ContentPart, where: str) -> str | ContentPart:
        if not _is_sound(part):
            return part
        given = given_of_part("audio", msgspec.to_builtins(part), where)
        try:
            sound = await asyncio.to_thread(self._sources.read, given.source)
            key = (self._salt, sha256(sound).digest())
            words = self._kept.pop(key, None)
            if words is None:
                words = await self._words_of(sound)
        except RequestError as error:
            raise RequestError(f"{where}: {error}", parameter="messages") from None
        if len(words) <= _MOST_CHARS:
            self._kept[key] = words
        if len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return ContentPart(type="text", text=words)

    async def _words_of(self, sound: bytes) -> str:
        items = self._transcriber.transcribe(sound, TranscriptionOptions(seed=0))
        run = SpeechRun(items, self._deadline)
        try:
            await run.header()
            return "".join([segment.text async for segment in run.segments()]).strip()
        finally:
            run.close()
