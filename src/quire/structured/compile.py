"""`GrammarCompiler`: compiles grammars off the engine's thread, and keeps those that were used.

Called by the `StructuredOutputManager` on the engine's thread. Knows no request.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from time import thread_time
from typing import Any, TypeVar

import msgspec

from quire.errors import GrammarError
from quire.structured.limits import MAX_TRIAL_S, check_work, parser_limits
from quire.structured.matcher import GrammarMatcher, error_of
from quire.structured.params import StructuredOutputsParams
from quire.structured.source import grammar_of
from quire.structured.vocabulary import Vocabulary, VocabularySource, load_vocabulary
from quire.units import KiB, MiB

_T = TypeVar("_T")

NUM_THREADS = 2
"""More than one, so that a slow grammar does not delay all others."""
MAX_CACHE_BYTES = 64 * MiB
"""Maximum bytes of cached grammars that no request uses."""
_BYTES_PER_GRAMMAR = 64 * KiB
_STACK_BYTES = 32 * MiB
"""Stack size of compiling threads: more than any grammar that has passed its trial needs."""
_BYTES_PER_CHAR = 256
"""Bytes that a compiled grammar takes for a character of its text, measured on patterns."""


@contextmanager
def _large_stacks() -> Iterator[None]:
    """Threads that start meanwhile have large stacks."""
    before = threading.stack_size(_STACK_BYTES)
    try:
        yield
    finally:
        threading.stack_size(before)


class CompiledGrammar:
    """A grammar that was compiled for a vocabulary. Any thread may use it."""

    __slots__ = ("compile_s", "eos_token_ids", "is_slow", "num_bytes", "start")

    def __init__(
        self, start: GrammarMatcher, num_bytes: int, eos: tuple[int, ...], compile_s: float = 0.0
    ) -> None:
        self.start = start
        """At its begin; requests take copies."""
        self.num_bytes = num_bytes
        """An estimate."""
        self.eos_token_ids = eos
        self.compile_s = compile_s
        """Processor time that its compilation took."""
        self.is_slow = False
        """Whether following it has taken long for a request; true for ever then."""


class GrammarCompiler:
    """A pool of threads, made at the first grammar, and a cache: least recently used out first.

    Requests of one tenant share grammars, also one that is being compiled. Those of several do not:
    the time of a reply would show which grammars others use. Compilations that failed are not kept.
    One caller.
    """

    def __init__(
        self, read_source: Callable[[], VocabularySource], max_cache_bytes: int = MAX_CACHE_BYTES
    ) -> None:
        """`read_source` is called on one of the threads, once."""
        self._read_source = read_source
        self._max_cache_bytes = max_cache_bytes
        self._pool: ThreadPoolExecutor | None = None
        self._entries: OrderedDict[bytes, Future[CompiledGrammar]] = OrderedDict()
        """By digest of tenant and grammar, the most recently used last; some are not compiled
        yet."""
        self._vocabulary: tuple[VocabularySource, Vocabulary] | None = None
        self._vocabulary_lock = threading.Lock()

    def prepare(self) -> None:
        """Begins to read the vocabulary, which the first grammar needs. What fails is raised for
        that grammar."""
        if self._pool is None:
            self._start(self._load_vocabulary)

    def submit(self, spec: StructuredOutputsParams, tenant: str = "") -> Future[CompiledGrammar]:
        """The future of a compiled grammar. Its errors are those of `grammar_of`, GrammarError, and
        those of reading the tokenizer. The caller may cancel it if no request waits for it."""
        digest = hashlib.sha256(msgspec.msgpack.encode((tenant, spec))).digest()
        found = self._entries.get(digest)
        if found is None or found.cancelled() or (found.done() and found.exception()):
            self._evict()
            found = self._entries[digest] = self._start(self._compile, spec)
        self._entries.move_to_end(digest)
        return found

    def _start(self, function: Callable[..., _T], *args: Any) -> Future[_T]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="quire-grammar")
        with _large_stacks():
            return self._pool.submit(function, *args)

    def shutdown(self) -> None:
        """Starts no compilation any more. Idempotent."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _evict(self) -> None:
        """Drops what was not used for longest, beyond the bound, and what failed."""
        left = self._max_cache_bytes
        for digest, entry in reversed(list(self._entries.items())):
            if not entry.done():
                continue
            if entry.cancelled() or entry.exception() is not None:
                del self._entries[digest]
                continue
            left -= entry.result().num_bytes
            if left < 0:
                del self._entries[digest]

    def _compile(self, spec: StructuredOutputsParams) -> CompiledGrammar:
        """On a thread of the pool; the interpreter is free during most of it."""
        from llguidance import LLMatcher

        source, vocabulary = self._load_vocabulary()
        began_at = thread_time()
        text = grammar_of(spec, vocabulary.added)
        matcher = LLMatcher(vocabulary.tokenizer, text, log_level=0, limits=parser_limits())
        if matcher.is_error():
            message = f"the grammar cannot be compiled: {error_of(matcher)}"
            raise GrammarError(message, parameter="structured_outputs")
        start = GrammarMatcher.start(matcher, source.vocab_size)
        num_bytes = _BYTES_PER_GRAMMAR + _BYTES_PER_CHAR * len(text)
        compile_s = thread_time() - began_at
        check_work(MAX_TRIAL_S + compile_s)
        return CompiledGrammar(start, num_bytes, source.eos_token_ids, compile_s)

    def _load_vocabulary(self) -> tuple[VocabularySource, Vocabulary]:
        with self._vocabulary_lock:
            if self._vocabulary is None:
                source = self._read_source()
                self._vocabulary = source, load_vocabulary(source)
            return self._vocabulary
