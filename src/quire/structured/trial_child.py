"""The process that tries grammars.

Started by `process` alone. A hostile grammar of a few lines can take the library minutes, or end
the process with an exhausted stack, which no handler can stop. Here the kernel bounds the processor
time and the memory, and a crash ends this process only.
"""

from __future__ import annotations

import signal
import threading
from collections import OrderedDict

import msgspec

from quire.structured.limits import MAX_TRIAL_S, parser_limits
from quire.structured.matcher import error_of
from quire.structured.trial_process import (
    MAX_MEMORY_BYTES,
    MAX_STACK_BYTES,
    OUTCOME,
    TrialJob,
    TrialVocabulary,
)
from quire.structured.vocabulary import Vocabulary, byte_vocabulary
from quire.system.child_serving import limit, serve
from quire.units import MiB

_LARGE_BYTES = 256 * MiB
_MOST_VOCABULARIES = 8


def main() -> int:
    """Tries grammars until the parent closes the socket, or until the process has grown too
    much."""
    limit("RLIMIT_AS", MAX_MEMORY_BYTES)
    limit("RLIMIT_CORE", 0)
    limit("RLIMIT_FSIZE", 0)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    threading.stack_size(MAX_STACK_BYTES)
    thread = threading.Thread(target=serve, args=(_Trials().outcome, _LARGE_BYTES))
    thread.start()
    thread.join()
    return 0


class _Trials:
    """Keeps the vocabularies of the last jobs."""

    def __init__(self) -> None:
        self._decoder = msgspec.msgpack.Decoder(TrialJob)
        self._vocabularies: OrderedDict[TrialVocabulary, Vocabulary] = OrderedDict()

    def outcome(self, data: bytes) -> tuple[bytes, bytes]:
        """The kind and the payload of a reply: the library's error, empty if the grammar works."""
        job = self._decoder.decode(data)
        given = job.vocabulary
        vocabulary = self._vocabularies.pop(given, None) or byte_vocabulary(
            given.added, given.special, given.vocab_size
        )
        self._vocabularies[given] = vocabulary
        if len(self._vocabularies) > _MOST_VOCABULARIES:
            self._vocabularies.popitem(last=False)
        signal.setitimer(signal.ITIMER_PROF, MAX_TRIAL_S)  # its signal ends the process
        message = _tried(vocabulary, job.grammar)
        signal.setitimer(signal.ITIMER_PROF, 0)
        return OUTCOME, message.encode()


def _tried(vocabulary: Vocabulary, grammar: str) -> str:
    """The library's error about a grammar; empty if it works."""
    from llguidance import LLMatcher

    matcher = LLMatcher(vocabulary.tokenizer, grammar, log_level=0, limits=parser_limits())
    if not matcher.is_error():
        matcher.compute_bitmask()
    return error_of(matcher) if matcher.is_error() else ""
