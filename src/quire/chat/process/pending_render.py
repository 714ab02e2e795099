"""`PendingRender`: sends a job to a child process and receives its reply, on an event loop.

Uses the loop's callbacks, and no task or thread for each job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire.chat.job import RenderJob
from quire.chat.process.renderer_process import CLOCK_FACTOR, RenderProcess, encoded, text_of
from quire.errors import QuireError, RequestError


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
        process.socket.setblocking(False)
        self._send()
        if self._unsent:
            self._loop.add_writer(process.socket, self._send)

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
        if cause is None:
            self._process.kill()
        ending = self._loop.run_in_executor(None, self._process.end, self._job, cause)
        ending.add_done_callback(self._on_killed)

    def _on_killed(self, ending: asyncio.Future[QuireError]) -> None:
        self._on_end(self._process)
        if not self.text.done():
            self.text.set_exception(ending.result())

    def _leave_loop(self) -> None:
        self._timer.cancel()
        self._loop.remove_writer(self._process.socket)
        self._loop.remove_reader(self._process.socket)
