"""The process that tries grammars: reads jobs from its standard input, one at a time.

Started by `process` alone. A hostile grammar of a few lines can take minutes of the library,
or end the process with an exhausted stack, which no handler stops: so it is tried here, where the
kernel bounds its processor time and memory, and nothing else is lost.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
from collections import OrderedDict
from contextlib import suppress
from typing import BinaryIO

import msgspec

from quire.structured.limits import MAX_TRIAL_S, parser_limits
from quire.structured.matcher import error_of
from quire.structured.trials.wire import (
    LENGTH_BYTES,
    MAX_MEMORY_BYTES,
    MAX_STACK_BYTES,
    TrialJob,
    TrialOutcome,
    TrialVocabulary,
)
from quire.structured.vocabulary import Vocabulary, byte_vocabulary
from quire.units import MiB

_LARGE_BYTES = 256 * MiB
"""A process that stays larger than this ends, which returns its memory to the system."""
_MOST_VOCABULARIES = 8


def main() -> int:
    """Answers until the parent closes the socket, or until the process has grown too much."""
    for kind, most in (
        (resource.RLIMIT_AS, MAX_MEMORY_BYTES), (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):  # fmt: skip
        with suppress(ValueError, OSError):  # a lower limit is set already
            resource.setrlimit(kind, (most, most))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    threading.stack_size(MAX_STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(sys.stdin.buffer, sys.stdout.buffer))
    thread.start()
    thread.join()
    return 0


def _serve(jobs: BinaryIO, outcomes: BinaryIO) -> None:
    """A job and an outcome are their length and msgpack."""
    decoder = msgspec.msgpack.Decoder(TrialJob)
    vocabularies: OrderedDict[TrialVocabulary, Vocabulary] = OrderedDict()
    while head := jobs.read(LENGTH_BYTES):
        job = decoder.decode(jobs.read(int.from_bytes(head, "big")))
        vocabulary = vocabularies.pop(job.vocabulary, None) or _vocabulary_of(job.vocabulary)
        vocabularies[job.vocabulary] = vocabulary
        if len(vocabularies) > _MOST_VOCABULARIES:
            vocabularies.popitem(last=False)
        signal.setitimer(signal.ITIMER_PROF, MAX_TRIAL_S)  # of all threads; its signal ends us
        message = _tried(vocabulary, job.grammar)
        signal.setitimer(signal.ITIMER_PROF, 0)
        outcome = TrialOutcome(message, is_last=_resident_bytes() > _LARGE_BYTES)
        data = msgspec.msgpack.encode(outcome)
        outcomes.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
        outcomes.flush()
        if outcome.is_last:
            return


def _vocabulary_of(told: TrialVocabulary) -> Vocabulary:
    return byte_vocabulary(told.added, told.special, told.vocab_size)


def _tried(vocabulary: Vocabulary, grammar: str) -> str:
    """What the library says against a grammar; empty if nothing."""
    from llguidance import LLMatcher

    matcher = LLMatcher(vocabulary.tokenizer, grammar, log_level=0, limits=parser_limits())
    if not matcher.is_error():
        matcher.compute_bitmask()
    return error_of(matcher) if matcher.is_error() else ""


def _resident_bytes() -> int:
    """0 where the system does not tell."""
    with suppress(OSError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
