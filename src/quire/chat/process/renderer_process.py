"""`RenderProcess`: the parent's side of one child process that renders chat templates.

The child is not trusted, because it runs untrusted templates: it is killed when a reply is late or
malformed. Knows nothing of checkpoints and requests.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path

from quire.chat.job import TOO_LONG, RenderJob
from quire.chat.process.wire import RenderReply, encoded
from quire.errors import QuireError, RequestError

CLOCK_FACTOR = 6
"""Most wall-clock seconds for each second of processor time that a job may take: on a loaded
machine a child waits for a core. The kernel enforces the processor time."""
_EXIT_S = 0.5
_INHERITED_VARIABLES = ("LD_LIBRARY_PATH", "TZ")
"""The environment variables that a child gets: none that can hold a key or a token."""
_BOOTSTRAP = (
    "import sys; sys.path += sys.argv[1:]; from quire.chat.process.child import main; main()"
)


class RenderProcess:
    """Owns the child and the socket to it. One job at a time.

    The child ends with `close`, with this object, and with this process, even if that is killed.
    """

    def __init__(self) -> None:
        """Starts the child; does not wait until it is ready. Raises QuireError."""
        self.socket, child_socket = socket.socketpair()
        with child_socket:
            try:
                self._process = _start(child_socket.fileno())
            except OSError as error:
                self.socket.close()
                raise QuireError(f"no process for chat templates can be started: {error}") from None
        self._finalizer = weakref.finalize(self, _end, self._process, self.socket)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def is_open(self) -> bool:
        """Whether it can take another job."""
        return self._finalizer.alive and self._process.poll() is None

    def render(self, job: RenderJob) -> str:
        """The prompt. Raises RequestError, and QuireError if the child dies.

        Any other exception during the wait, such as Ctrl+C, ends the child too.
        """
        data, reply = encoded(job), RenderReply()
        deadline = time.monotonic() + CLOCK_FACTOR * job.max_seconds
        try:
            self.socket.settimeout(_left_s(deadline))
            self.socket.sendall(data)
            while reply.num_wanted:
                self.socket.settimeout(_left_s(deadline))
                reply.add(self.socket.recv(reply.num_wanted))
        except TimeoutError:
            raise self.end(job, None) from None
        except (OSError, ValueError) as error:
            raise self.end(job, error) from None
        except BaseException:
            self.close()
            raise
        if reply.is_last:
            self.close()
        return reply.text()

    def kill(self) -> None:
        """Ends the child at once; a caller that waits for its reply gets an error. Any thread may
        call it."""
        self._process.kill()

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
        with suppress(subprocess.TimeoutExpired):  # then `close` kills it
            self._process.wait(_EXIT_S)
        self.close()
        code = self._process.returncode
        if code == -signal.SIGXCPU:
            too_long = TOO_LONG.format(job.max_seconds)
            return RequestError(f"{what} was stopped: {too_long}", parameter="messages")
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return QuireError(f"{what} has no prompt: its process {how} ({cause})")

    def close(self) -> None:
        """Ends the child and frees the socket. Idempotent."""
        self._finalizer()


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _start(child_socket: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        _command(),
        stdin=child_socket,
        stdout=child_socket,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ},
        start_new_session=True,  # Ctrl+C is for the parent
    )


def _command() -> list[str]:
    """This interpreter, isolated: no `site`, no user's modules, no environment variables."""
    packages = [_directory_of(name) for name in ("quire", "jinja2", "markupsafe")]
    return [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, *dict.fromkeys(packages)]


def _directory_of(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise QuireError(f"chat templates need the package {package}, which cannot be found")
    return str(Path(spec.origin).parents[1])


def _end(process: subprocess.Popen[bytes], parent_socket: socket.socket) -> None:
    process.kill()
    process.wait()
    parent_socket.close()
