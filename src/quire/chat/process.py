"""`RenderProcess`: one child process that renders chat templates, seen from this side.

The child is trusted as little as the templates it runs: its replies are bounded, and it is killed
when one is late or makes no sense. Knows nothing of checkpoints and requests.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
import weakref
from pathlib import Path

import msgspec

from quire.chat.job import RenderJob
from quire.errors import QuireError, RequestError
from quire.units import format_bytes

_MAX_JOB_BYTES = 1 << 26
_MAX_REPLY_BYTES = 1 << 26
"""Enough for the longest text that a rendering may give."""
_HEAD_BYTES = 5
"""Of a reply: its kind, and the length of what follows."""
_READ_BYTES = 1 << 18
_GRACE_S = 0.5
"""On top of a job's time: a child that can still do so says itself that the time is up."""
_EXIT_S = 0.5
_PASSED_ON = ("LD_LIBRARY_PATH", "TZ")
"""The environment variables that a child gets. Keys and tokens are in others."""
_BOOTSTRAP = "import sys; sys.path += sys.argv[1:]; from quire.chat.child import main; main()"


class Refusal(msgspec.Struct):
    """The reply to a job that cannot be rendered."""

    message: str
    parameter: str | None


class RenderProcess:
    """Owns the child and the socket to it. One caller at a time.

    The child ends with `close`, with this object, and with this process, however that ends.
    """

    def __init__(self) -> None:
        """Starts the child, and does not wait until it is up. Raises QuireError."""
        self._socket, theirs = socket.socketpair()
        self._is_late = self._is_done = False
        with theirs:
            try:
                self._process = _start(theirs.fileno())
            except OSError as error:
                self._socket.close()
                raise QuireError(f"no process for chat templates can be started: {error}") from None
        self._finalizer = weakref.finalize(self, _end, self._process, self._socket)

    @property
    def pid(self) -> int:
        """The child."""
        return self._process.pid

    @property
    def is_open(self) -> bool:
        """Whether it can take another job."""
        return self._finalizer.alive and not self._is_done

    def render(self, job: RenderJob) -> str:
        """The prompt. Raises RequestError, and QuireError if the child dies of it.

        Whatever else interrupts the wait, such as Ctrl+C, ends the child.
        """
        data, reply = _encoded(job), _Reply()
        deadline = time.monotonic() + job.max_seconds + _GRACE_S
        try:
            self._socket.settimeout(_left_s(deadline))
            self._socket.sendall(data)
            while reply.num_wanted:
                self._socket.settimeout(_left_s(deadline))
                reply.add(self._socket.recv(reply.num_wanted))
        except TimeoutError:
            self._is_late = True
            raise self._death(job, "") from None
        except (OSError, ValueError) as error:
            raise self._death(job, str(error)) from None
        except BaseException:
            self.close()
            raise
        if reply.is_last:
            self.close()
        return _result(reply)

    async def render_async(self, job: RenderJob) -> str:
        """As `render`, beside an event loop."""
        import asyncio  # as long in coming as all the rest, and scripts that wait need none

        data, reply = _encoded(job), _Reply()
        loop = asyncio.get_running_loop()
        self._socket.setblocking(False)
        timer = loop.call_later(job.max_seconds + _GRACE_S, self._on_deadline)
        try:
            await loop.sock_sendall(self._socket, data)
            while reply.num_wanted:
                reply.add(await loop.sock_recv(self._socket, reply.num_wanted))
        except (OSError, ValueError) as error:
            raise await loop.run_in_executor(None, self._death, job, str(error)) from None
        except BaseException:
            self.close()
            raise
        finally:
            timer.cancel()
        if reply.is_last:
            self._is_done = True
            loop.run_in_executor(None, self.close)  # frees much memory, which takes its time
        return _result(reply)

    def kill(self) -> None:
        """Ends the child at once; whoever waits for its reply gets an error. Any thread may call
        it."""
        self._process.kill()

    def close(self) -> None:
        """Ends the child and frees the socket. Idempotent."""
        self._finalizer()

    def _on_deadline(self) -> None:
        self._is_late = True
        self.kill()

    def _death(self, job: RenderJob, cause: str) -> QuireError:
        """Ends the child, if it is not dead already; what the caller is told."""
        if not self._is_late:
            try:
                self._process.wait(_EXIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self.close()
        what = f"the chat template {job.template_name!r}"
        if self._is_late:
            return RequestError(
                f"{what} was stopped: it takes more than {job.max_seconds:g} s",
                parameter="messages",
            )
        code = self._process.returncode
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return QuireError(f"{what} has no prompt: its process {how} ({cause})")


class _Reply:
    """A reply as it arrives."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.num_wanted = _READ_BYTES
        """Bytes to read next; 0 once it is complete. A child sends nothing after a reply."""

    def add(self, piece: bytes) -> None:
        """Raises OSError for the end of the child, ValueError for a reply of no sense."""
        if not piece:
            raise OSError("no reply")
        self._data += piece
        if len(self._data) < _HEAD_BYTES:
            return
        size = int.from_bytes(self._data[1:_HEAD_BYTES], "big")
        if self.kind not in (b"T", b"t", b"R", b"r") or size > _MAX_REPLY_BYTES:
            raise ValueError(f"a reply of kind {self.kind!r} and {size} bytes")
        self.num_wanted = min(_HEAD_BYTES + size - len(self._data), _READ_BYTES)
        if self.num_wanted < 0:
            raise ValueError("more than a reply")

    @property
    def kind(self) -> bytes:
        """One letter."""
        return bytes(self._data[:1])

    @property
    def is_last(self) -> bool:
        """Whether the child ends after it."""
        return self.kind.islower()

    @property
    def payload(self) -> bytearray:
        """What follows the head."""
        return self._data[_HEAD_BYTES:]


def _result(reply: _Reply) -> str:
    """The text, or RequestError; QuireError for a reply of no sense."""
    try:
        if reply.kind in b"Tt":
            return reply.payload.decode()
        refusal = msgspec.json.decode(reply.payload, type=Refusal)
    except (ValueError, msgspec.MsgspecError):
        raise QuireError("the process of the chat template gave a reply of no sense") from None
    raise RequestError(refusal.message, parameter=refusal.parameter)


def _encoded(job: RenderJob) -> bytes:
    """The job behind its length. Raises RequestError."""
    try:
        data = msgspec.json.encode(job)
    except (UnicodeEncodeError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else "not valid Unicode"
        raise RequestError(f"the messages are {what}", parameter="messages") from None
    if len(data) > _MAX_JOB_BYTES:
        raise RequestError(
            f"the messages and all that goes with them have {format_bytes(len(data))}; at most "
            f"{format_bytes(_MAX_JOB_BYTES)} are rendered",
            parameter="messages",
        )
    return len(data).to_bytes(4, "big") + data


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _start(theirs: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        _command(),
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        start_new_session=True,  # Ctrl+C is for the parent
    )


def _command() -> list[str]:
    """This interpreter, isolated: no `site`, no user's modules, nothing of the environment."""
    packages = [_directory_of(name) for name in ("quire", "jinja2", "markupsafe")]
    return [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, *dict.fromkeys(packages)]


def _directory_of(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise QuireError(f"chat templates need the package {package}, which cannot be found")
    return str(Path(spec.origin).parents[1])


def _end(process: subprocess.Popen[bytes], ours: socket.socket) -> None:
    process.kill()
    process.wait()
    ours.close()
