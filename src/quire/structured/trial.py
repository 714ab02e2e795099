"""`GrammarTrial`: finds errors in a grammar when its request is validated.

Compiles the grammar for a stand-in of the model's vocabulary: single bytes and the model's added
tokens. That takes a millisecond for most grammars, where the whole vocabulary takes a second once;
and it does not need the engine. It runs in a child process with limits on time, memory and stack,
so that a grammar that exceeds them affects nothing else.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from quire.errors import GrammarError
from quire.structured.params import FIELD, StructuredOutputsConfig, StructuredOutputsParams
from quire.structured.schemas.places import with_place
from quire.structured.source import grammar_of, parsed_schema
from quire.structured.tags.texts import AddedTokens
from quire.structured.trial_process import TrialJob, TrialVocabulary
from quire.structured.vocabulary import byte_tokens

_MAX_KNOWN = 2048
"""Outcomes that are kept: one for a grammar, and one for what asked for it."""
_MAX_MESSAGE = 500
_BY_ID = re.compile(r"<\[\^?\d")
"""A grammar that names tokens by their ids."""
_SOURCE = re.compile(r"\Aat \d+\(\d+\): |(?:\n +\d+ \| .*)+(?:\n +\^)?\s*\Z")
"""The place of an error and the lines around it, of a grammar that the caller did not write."""


class _StandIn(NamedTuple):
    vocabulary: TrialVocabulary
    added: AddedTokens


class GrammarTrial:
    """The trials of one model. Any thread may use it; two may try the same grammar at once."""

    def __init__(
        self,
        config: StructuredOutputsConfig,
        vocab_size: int,
        added_tokens: Callable[[], Mapping[str, bool]],
        on_first: Callable[[], None] = lambda: None,
    ) -> None:
        """`vocab_size`: the width of the logits. `added_tokens`: whether each one is special, by
        its text; is called at the first grammar. `on_first`: called before the first trial, on any
        thread, to prepare other resources of grammars meanwhile."""
        self._config = config
        self._vocab_size = vocab_size
        self._added_tokens = added_tokens
        self._on_first: Callable[[], None] | None = on_first
        self._stand_ins: dict[int | None, _StandIn] = {}
        self._known: OrderedDict[bytes, str] = OrderedDict()
        """Error messages, empty for what works, by the digests of grammars and of what asked for
        them: what was asked for before is not made a grammar again."""
        self._lock = threading.Lock()

    def checked(self, spec: StructuredOutputsParams) -> StructuredOutputsParams:
        """The same with the engine's settings. Raises GrammarError for what cannot be compiled, or
        allows no text at all."""
        spec = self._settled(spec)
        asked = hashlib.sha256(repr(spec).encode()).digest()
        message = self._known.get(asked)
        if message is None:
            message = self._outcome(spec, asked)
        if message:
            if spec.kind != "grammar":
                message = _SOURCE.sub("", message)
            if spec.kind == "json":
                message = with_place(message, parsed_schema("json", spec.json))
            raise GrammarError(
                f"{FIELD}.{spec.kind} does not work: {message}", parameter=f"{FIELD}.{spec.kind}"
            )
        return spec

    def _outcome(self, spec: StructuredOutputsParams, asked: bytes) -> str:
        """The error of what is asked for, empty if it works. `asked`: its digest."""
        names_ids = isinstance(value := getattr(spec, spec.kind), str) and _BY_ID.search(value)
        stand_in = self._stand_in(self._vocab_size if names_ids else None)
        grammar = grammar_of(spec, stand_in.added)
        digest = hashlib.sha256(grammar.encode()).digest()
        message = self._known.get(digest)
        if message is not None:
            self._keep({asked: message})
            return message
        return self._tried((asked, digest), TrialJob(stand_in.vocabulary, grammar))

    def _settled(self, spec: StructuredOutputsParams) -> StructuredOutputsParams:
        """A copy that no caller changes."""
        config, changes = self._config, dict[str, Any]()
        if config.disable_any_whitespace and spec.whitespace_pattern is None:
            changes["disable_any_whitespace"] = True
        if spec.disable_additional_properties is None and not config.disable_additional_properties:
            changes["disable_additional_properties"] = False
        if isinstance(spec.json, dict):
            changes["json"] = msgspec.json.encode(parsed_schema("json", spec.json)).decode()
        return msgspec.structs.replace(spec, **changes) if changes else spec

    def _tried(self, digests: tuple[bytes, bytes], job: TrialJob) -> str:
        """Error of a grammar; empty if it has none. If the trial was stopped, the result is not
        kept, because another trial may end otherwise."""
        from quire.structured.trial_process import TrialStopped, try_grammar  # rarely needed

        with self._lock:
            on_first, self._on_first = self._on_first, None
        if on_first is not None:
            on_first()
        try:
            message = _shown(try_grammar(job))
        except TrialStopped as stopped:
            return f"{stopped}; make it smaller or simpler"
        self._keep(dict.fromkeys(digests, message))
        return message

    def _keep(self, outcomes: Mapping[bytes, str]) -> None:
        with self._lock:
            self._known.update(outcomes)
            while len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)

    def _stand_in(self, vocab_size: int | None) -> _StandIn:
        """The stand-in of the model's vocabulary. `vocab_size`: its number of ids (slower); None:
        as few as possible."""
        with self._lock:
            if vocab_size not in self._stand_ins:
                added = self._added_tokens()
                special = tuple(text for text, is_special in added.items() if is_special)
                vocabulary = TrialVocabulary(tuple(added), special, vocab_size)
                self._stand_ins[vocab_size] = _StandIn(vocabulary, byte_tokens(added, special))
            return self._stand_ins[vocab_size]


def _shown(message: str) -> str:
    """The library's message, shortened for a caller."""
    return message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]} ..."
