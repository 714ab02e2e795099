"""`try_grammar`: compiles a grammar in a child process, because a hostile one can end or hang it.

Called by `GrammarTrial`, on any thread. The processes are shared by all trials of this process,
since a child needs no model; they start with the first grammars and end with this process.
"""

from __future__ import annotations

import signal
import time

import msgspec

from quire.errors import CapacityError, QuireError
from quire.structured.limits import MAX_TRIAL_S
from quire.system.child_pool import ChildPool
from quire.system.child_process import ChildProcess, StoppedError, encoded_job
from quire.system.child_python import isolated_command
from quire.units import GiB, MiB

MAX_PROCESSES = 2
"""With a second process, a slow grammar does not keep all others waiting."""
_CLOCK_S = 30.0
"""Wall-clock time for a trial: on a loaded machine a child waits for a core."""
_EXIT_S = 2.0
_MAX_OUTCOME_BYTES = 1 << 20


class TrialStopped(Exception):  # noqa: N818  (the grammar failed, not this code)
    """The child was ended by a grammar; the message says how."""


def try_grammar(job: TrialJob) -> str:
    """The library's error about a grammar; empty if it works. Raises TrialStopped, CapacityError if
    a signal stops the child, and QuireError where no child can be started."""
    with _children.child() as child:
        return _outcome(child, job)


def _outcome(child: ChildProcess, job: TrialJob) -> str:
    data = encoded_job(msgspec.msgpack.encode(job))
    try:
        return child.ask(data, time.monotonic() + _CLOCK_S).payload.decode()
    except TimeoutError:
        raise TrialStopped(f"compiling it takes more than {_CLOCK_S:g} s") from None
    except StoppedError as error:
        raise CapacityError(f"the process that tries grammars {error}") from None
    except (OSError, ValueError) as error:
        raise _death(child.exit_code(_EXIT_S), error) from None


def _death(code: int, cause: Exception) -> Exception:
    """Why a child has ended without an outcome."""
    if code == -signal.SIGPROF:
        return TrialStopped(f"compiling it takes more than {MAX_TRIAL_S:g} s of processor time")
    if code in (-signal.SIGSEGV, -signal.SIGBUS):
        return TrialStopped("compiling it nests too deeply")
    if code in (-signal.SIGABRT, -signal.SIGKILL):
        return TrialStopped("compiling it takes too much memory")
    return QuireError(f"the process that tries grammars has failed: {cause}, exit code {code}")


def _start() -> ChildProcess:
    try:
        packages = ("quire", "llguidance", "msgspec")
        command = isolated_command("quire.structured.trial_child", packages, "grammars")
        return ChildProcess(command, OUTCOME, _MAX_OUTCOME_BYTES)
    except OSError as error:
        raise QuireError(f"no process for grammars can be started: {error}") from None


_children = ChildPool(MAX_PROCESSES, _start)


OUTCOME = b"O"
"""The kind of all replies."""
MAX_MEMORY_BYTES = 2 * GiB
"""Most address space of a child."""
MAX_STACK_BYTES = 16 * MiB
"""A chain of definitions that refer to each other needs about 10 KiB of stack for each. The threads
that compile accepted grammars have larger stacks."""


class TrialVocabulary(msgspec.Struct, frozen=True):
    """The arguments of `byte_vocabulary`."""

    added: tuple[str, ...]
    special: tuple[str, ...]
    vocab_size: int | None


class TrialJob(msgspec.Struct):
    """A grammar to be compiled."""

    vocabulary: TrialVocabulary
    grammar: str
