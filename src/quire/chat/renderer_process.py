"""`RendererProcess`: a child process that renders templates, and `PendingRender`, one job of it on
an event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

import msgspec

from quire.chat.job import TOO_LONG, RenderJob
from quire.errors import CapacityError, QuireError, RequestError
from quire.system.child_process import (
    WATCH_S,
    ChildProcess,
    Reply,
    StoppedError,
    StopWatch,
    encoded_job,
)
from quire.system.child_python import isolated_command
from quire.units import format_bytes


class PendingRender:
    """One job. It runs to its end even if its caller is cancelled: the process stays usable."""

    def __init__(
        self, process: RenderProcess, job: RenderJob, on_end: Callable[[RenderProcess], None]
    ) -> None:
        """Sends the job. `on_end` gets the process back, usable or closed. Raises RequestError."""
        self._process, self._job, self._on_end = process, job, on_end
        self._unsent = memoryview(encoded(job))
        self._reply = process.new_reply()
        self._loop = asyncio.get_running_loop()
        self.text: asyncio.Future[str] = self._loop.create_future()
        """The prompt. Fails with RequestError, or with QuireError if the child dies."""
        self._timer = self._loop.call_later(CLOCK_FACTOR * job.max_seconds, self._fail, None)
        self._stops = StopWatch(process.pid)
        self._watch = self._loop.call_later(WATCH_S, self._look)
        process.socket.setblocking(False)
        self._send()
        if self._unsent:
            self._loop.add_writer(process.socket, self._send)

    def _look(self) -> None:
        self._watch = self._loop.call_later(WATCH_S, self._look)
        if self._stops.look():
            self._fail(StoppedError())

    def _send(self) -> None:
        try:
            self._unsent = self._unsent[self._process.socket.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(error)
            return
        if not self._unsent:
            self._loop.remove_writer(self._process.socket)
            self._loop.add_reader(self._process.socket, self._receive)

    def _receive(self) -> None:
        try:
            self._reply.add(self._process.socket.recv(self._reply.num_wanted))
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:
            self._fail(error)
            return
        if not self._reply.num_wanted:
            self._finish()

    def _finish(self) -> None:
        result: str | RequestError
        try:
            result = text_of(self._reply)
        except RequestError as error:
            result = error
        except ValueError as error:
            self._fail(error)
            return
        self._leave_loop()
        if self._reply.is_last:  # freeing its memory takes a moment
            closing = self._loop.run_in_executor(None, self._process.close)
            closing.add_done_callback(lambda _: self._on_end(self._process))
        else:
            self._on_end(self._process)
        if self.text.done():  # the caller was cancelled
            return
        if isinstance(result, RequestError):
            self.text.set_exception(result)
        else:
            self.text.set_result(result)

    def _fail(self, cause: Exception | None) -> None:
        """Ends the child. `cause` None: the time limit has passed."""
        self._leave_loop()
        self._unsent = memoryview(b"")
        if cause is None or isinstance(cause, StoppedError):
            self._process.kill()
        ending = self._loop.run_in_executor(None, self._process.end, self._job, cause)
        ending.add_done_callback(self._on_killed)

    def _on_killed(self, ending: asyncio.Future[QuireError]) -> None:
        self._on_end(self._process)
        if not self.text.done():
            self.text.set_exception(ending.result())

    def _leave_loop(self) -> None:
        self._timer.cancel()
        self._watch.cancel()
        self._loop.remove_writer(self._process.socket)
        self._loop.remove_reader(self._process.socket)


CLOCK_FACTOR = 6
"""Most wall-clock seconds for each second of processor time that a job may take: on a loaded
machine a child waits for a core. The kernel enforces the processor time."""
_EXIT_S = 0.5
_KINDS = b"TR"
_MAX_JOB_BYTES = 1 << 26
_MAX_REPLY_BYTES = 1 << 26
"""Enough for the longest text that a rendering may give."""
_INHERITED_VARIABLES = ("LD_LIBRARY_PATH", "TZ")
"""The environment variables that a child gets: none that can hold a key or a token."""


class Refusal(msgspec.Struct):
    """The reply to a job that cannot be rendered."""

    message: str
    parameter: str | None


class RenderProcess(ChildProcess):
    """A child that renders chat templates."""

    def __init__(self) -> None:
        """Starts the child; does not wait until it is ready. Raises QuireError."""
        variables = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
        try:
            super().__init__(_command(), _KINDS, _MAX_REPLY_BYTES, env=variables, cwd="/")
        except OSError as error:
            raise QuireError(f"no process for chat templates can be started: {error}") from None

    def render(self, job: RenderJob) -> str:
        """The prompt. Raises RequestError, CapacityError if a signal stops the child, and
        QuireError if it dies.

        Any other exception during the wait, such as Ctrl+C, ends the child too.
        """
        data = encoded(job)
        try:
            return text_of(self.ask(data, time.monotonic() + CLOCK_FACTOR * job.max_seconds))
        except RequestError:
            raise
        except TimeoutError:
            raise self.end(job, None) from None
        except (OSError, ValueError) as error:
            raise self.end(job, error) from None
        except BaseException:
            self.close()
            raise

    def end(self, job: RenderJob, cause: Exception | None) -> QuireError:
        """Closes the process because of a job. Returns the error for the job's caller.

        `cause` None: the time limit has passed. Waits up to `_EXIT_S` for the child to end.
        """
        what = f"the chat template {job.template_name!r}"
        if cause is None:
            self.close()
            seconds = CLOCK_FACTOR * job.max_seconds
            return RequestError(
                f"{what} was stopped: it takes more than {seconds:g} s", parameter="messages"
            )
        if isinstance(cause, StoppedError):
            self.close()
            return CapacityError(f"{what} has no prompt: its process {cause}")
        code = self.exit_code(_EXIT_S)
        if code == -signal.SIGXCPU:
            too_long = TOO_LONG.format(job.max_seconds)
            return RequestError(f"{what} was stopped: {too_long}", parameter="messages")
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return QuireError(f"{what} has no prompt: its process {how} ({cause})")


def text_of(reply: Reply) -> str:
    """The prompt in a complete reply. Raises RequestError for a refusal, ValueError for a malformed
    payload."""
    if reply.kind == b"T":
        return reply.payload.decode()
    try:
        refusal = msgspec.json.decode(reply.payload, type=Refusal)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
    raise RequestError(refusal.message, parameter=refusal.parameter)


def encoded(job: RenderJob) -> bytes:
    """A job as bytes. Raises RequestError if it is too large or not JSON."""
    try:
        data = msgspec.json.encode(job)
    except UnicodeEncodeError:
        raise RequestError("the messages are not valid Unicode", parameter="messages") from None
    except RecursionError:
        raise RequestError("the messages are nested too deeply", parameter="messages") from None
    except ValueError as error:  # an integer of thousands of digits
        raise RequestError(
            f"the messages cannot be written as JSON: {error}", parameter="messages"
        ) from None
    if len(data) > _MAX_JOB_BYTES:
        raise RequestError(
            f"the messages and all that goes with them have {format_bytes(len(data))}; at most "
            f"{format_bytes(_MAX_JOB_BYTES)} are rendered",
            parameter="messages",
        )
    return encoded_job(data)


def _command() -> list[str]:
    packages = ("quire", "jinja2", "markupsafe")
    return isolated_command("quire.chat.template_child", packages, "chat templates")
