"""`EngineSessions`: one engine with several front ends, each in a process of its own.

A session is a connection: the front end sends commands, and the engine frames, which are the events
of the front end's own requests, and signs of life. Knows no Ray.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from quire.core.client import EngineCoreClient, EngineListener
from quire.core.messages import AbortRequests, AddRequest, Call, Command, Dead, Event, Reply, Step
from quire.core.process_channel import encoder
from quire.errors import ConfigError, EngineDeadError, QuireError
from quire.frontend.observers.admission import Pace
from quire.protocol import EngineCoreOutput, EngineCoreOutputs
from quire.ray.serve.links import Link, link_over

BEAT_S = 0.4
"""Longest time between two frames."""
KEEP_ALIVE_S = 5.0
"""Longest time between two messages of a front end."""
_GONE_S = 3 * KEEP_ALIVE_S
"""A front end that has sent nothing for so long is gone."""


class Frame(msgspec.Struct, array_like=True):
    """Events that an engine sends to a front end at once."""

    events: list[Event]
    num_elsewhere: int = 0
    """Prompt tokens of other front ends that the engine has to compute."""


command_decoder: msgspec.msgpack.Decoder[list[Command]] = msgspec.msgpack.Decoder(list[Command])
frame_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


@dataclass(slots=True, eq=False)
class _Session:
    """A front end."""

    name: str
    link: Link
    heard_at: float = field(default_factory=time.monotonic)
    events: list[Event] = field(default_factory=list)
    """Not sent yet."""
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: dict[str, int] = field(default_factory=dict)
    """Prompt tokens of its requests without an output, by the engine's ids."""
    replying: set[str] = field(default_factory=set)
    """Its other requests."""
    num_waiting_tokens: int = 0

    def send(self, event: Event) -> None:
        self.events.append(event)
        self.woken.set()

    def has(self, request_id: str) -> bool:
        """Whether a request has not ended."""
        return request_id in self.waiting or request_id in self.replying

    def start(self, request_id: str) -> bool:
        """A request has an output, or has ended. Returns whether it was waiting."""
        num_tokens = self.waiting.pop(request_id, None)
        self.num_waiting_tokens -= num_tokens or 0
        return num_tokens is not None


class EngineSessions:
    """The sessions of an engine. One event loop."""

    def __init__(self, client: EngineCoreClient) -> None:
        self._client = client
        self._sessions: dict[str, _Session] = {}
        """By the front end's name."""
        self._pace = Pace()
        self._numbers = itertools.count()
        self._changed = asyncio.Event()
        """A session has ended."""
        self._tasks: set[asyncio.Task[None]] = set()

    def bind(self) -> None:
        """Serves the running event loop."""
        listener = EngineListener(self._on_outputs, self._on_dead)
        loop = asyncio.get_running_loop()
        self._client.attach(loop, listener)
        self._keep(loop.create_task(self._beat()))

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return sum(len(one.waiting) + len(one.replying) for one in self._sessions.values())

    def expected_wait_s(self) -> float:
        """Seconds that a request which would arrive now waits for its first token because of those
        before it."""
        return self._pace.seconds_for(self._num_waiting())

    def begin(self, front_end: str, connected: socket.socket) -> None:
        """Begins the session of a front end that has connected."""
        self._keep(asyncio.get_running_loop().create_task(self._open(front_end, connected)))

    async def _open(self, front_end: str, connected: socket.socket) -> None:
        with suppress(OSError, EngineDeadError):
            await self._serve(front_end, await link_over(connected, accepts=True))

    async def _serve(self, front_end: str, link: Link) -> None:
        """A session, until one of the two ends it. An older session of the front end ends, with its
        requests."""
        if (old := self._sessions.get(front_end)) is not None:
            self._end(old)
        name = f"{front_end}/{next(self._numbers)}"
        session = self._sessions[front_end] = _Session(name, link)
        sending = asyncio.get_running_loop().create_task(self._send_all(session))
        try:
            await self._take_all(session)
        finally:
            sending.cancel()
            if self._sessions.get(front_end) is session:
                del self._sessions[front_end]
                self._changed.set()
            self._end(session)
            await asyncio.gather(sending, return_exceptions=True)

    async def none_left(self) -> None:
        """Waits until all front ends have ended their sessions."""
        while self._sessions:
            self._changed.clear()
            await self._changed.wait()

    async def _take_all(self, session: _Session) -> None:
        """Takes commands until the connection ends. Raises OSError or EngineDeadError."""
        while True:
            data = await session.link.read()
            session.heard_at = time.monotonic()
            for command in command_decoder.decode(data):
                self._take(session, command)

    async def _send_all(self, session: _Session) -> None:
        while True:
            await session.woken.wait()
            session.woken.clear()
            events, session.events = session.events, []
            everyone = sum(one.num_waiting_tokens for one in self._sessions.values())
            frame = Frame(events, everyone - session.num_waiting_tokens)
            await session.link.write(encoder.encode(frame))

    def _take(self, session: _Session, command: Command) -> None:
        if isinstance(command, AddRequest):
            request = command.request
            request.request_id = f"{session.name}/{request.request_id}"
            session.waiting[request.request_id] = len(request.prompt_token_ids)
            session.num_waiting_tokens += len(request.prompt_token_ids)
            with suppress(EngineDeadError):  # the session is notified of the death
                self._client.add_request(request)
        elif isinstance(command, AbortRequests):
            self._abort(session, [f"{session.name}/{one}" for one in command.request_ids])
        elif isinstance(command, Call):
            self._keep(asyncio.get_running_loop().create_task(self._answer(session, command)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _beat(self) -> None:
        """Sends signs of life, and ends the sessions of front ends that are gone."""
        while True:
            await asyncio.sleep(BEAT_S)
            gone = time.monotonic() - _GONE_S
            for session in self._sessions.values():
                if session.heard_at < gone:
                    self._end(session)
                session.woken.set()

    async def _answer(self, session: _Session, call: Call) -> None:
        try:
            value = await self._client.call(call.command, *call.args, **call.kwargs)
            reply = Reply(call.call_id, value)
        except QuireError as error:
            is_config_error = isinstance(error, ConfigError)
            reply = Reply(call.call_id, error=str(error), is_config_error=is_config_error)
        session.send(reply)

    def _abort(self, session: _Session, ids: list[str]) -> None:
        for one in ids:
            session.start(one)
            session.replying.discard(one)
        if ids:
            with suppress(EngineDeadError):
                self._client.abort_requests(ids)

    def _end(self, session: _Session) -> None:
        """Ends the requests of a session, and its connection."""
        session.link.close()
        self._abort(session, [*session.waiting, *session.replying])

    def _num_waiting(self) -> int:
        return sum(len(one.waiting) for one in self._sessions.values())

    def _on_outputs(self, outputs: EngineCoreOutputs) -> None:
        by_name = {session.name: session for session in self._sessions.values()}
        own: dict[str, list[EngineCoreOutput]] = {name: [] for name in by_name}
        num_first = 0
        for output in outputs.outputs:
            engines_id = output.request_id
            front_end, connection, output.request_id = engines_id.split("/", 2)
            session = by_name.get(f"{front_end}/{connection}")
            if session is None or not session.has(engines_id):
                continue  # it was aborted meanwhile
            own[session.name].append(output)
            if output.new_token_ids or output.finish_reason is not None:
                num_first += session.start(engines_id)
                session.replying.add(engines_id)
            if output.finish_reason is not None:
                session.replying.discard(engines_id)
        self._pace.observe(num_first, outputs.timestamp, self._num_waiting() > 0)
        for name, session in by_name.items():
            is_concerned = session.waiting or session.replying or own[name] or outputs.blocks
            if is_concerned:
                session.send(Step(msgspec.structs.replace(outputs, outputs=own[name])))

    def _on_dead(self, error: EngineDeadError) -> None:
        for session in self._sessions.values():
            session.send(Dead(str(error)))

    def require_life(self) -> None:
        """Raises EngineDeadError if the engine has died."""
        health = self._client.health()
        if health.state == "dead":
            raise EngineDeadError(health.reason)
