"""`BeamSearch`: the beam search of one prompt: the requests of the next step, and their results.

Each beam's next token is computed by a request of its own, which gets the beam's tokens so far and
returns the log-probabilities of the best next tokens. All blocks but the last one are prefix cache
hits. The driver runs the requests of `inputs` and passes their outputs to `advance` until
`is_done`. Used by one thread at a time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from quire.beam_search import BeamSearchParams
from quire.errors import EngineGenerateError
from quire.forbidden_tokens import ForbiddenTokens
from quire.outputs import FlatLogprobs, RequestOutput
from quire.sampling.word_endings import WordEndings
from quire.system import clock
from quire.tokenizer import IncrementalDetokenizer, Tokenizer, detokenizer_of

if TYPE_CHECKING:
    from quire.frontend.arguments import EngineInput


class BeamText(NamedTuple):
    """The state of a beam's text that is needed to find stop strings."""

    detokenizer: IncrementalDetokenizer
    """State at the end of the text; copied for each token that follows."""
    tail: str
    """The end of the generated text, one character shorter than the longest stop string."""


class StopStrings:
    """The stop strings of one search. Immutable."""

    def __init__(self, stops: Sequence[str], tokenizer: Tokenizer, *, skip_special: bool) -> None:
        """`stops` must not contain empty strings."""
        self._stops = stops
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._num_kept = max(map(len, stops)) - 1

    def begin(self, prompt_token_ids: Sequence[int]) -> BeamText:
        """The state of a beam without generated tokens."""
        return BeamText(self._detokenizer(prompt_token_ids), "")

    def follow(self, text: BeamText, token_id: int) -> tuple[BeamText, str | None]:
        """The state with one more token, and the stop string that it completes; if there are
        several, the one that begins first."""
        detokenizer = text.detokenizer.copy()
        window = text.tail + detokenizer.push((token_id,))
        found = [(place, stop) for stop in self._stops if (place := window.find(stop)) >= 0]
        tail = window[len(window) - self._num_kept :] if len(window) > self._num_kept else window
        return BeamText(detokenizer, tail), min(found)[1] if found else None

    def cut(
        self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], stop: str, *, keeps: bool
    ) -> str:
        """The text of generated tokens, whose last one completes `stop`, cut before the stop
        string, or after it with `keeps`."""
        detokenizer = self._detokenizer(prompt_token_ids)
        text = detokenizer.push(token_ids) + detokenizer.finish()
        return text[: text.index(stop) + (len(stop) if keeps else 0)]

    def _detokenizer(self, prompt_token_ids: Sequence[int]) -> IncrementalDetokenizer:
        return detokenizer_of(
            self._tokenizer, prompt_token_ids, skip_special_tokens=self._skip_special
        )


class Candidate(NamedTuple):
    """One of the best next tokens of a beam."""

    token_id: int
    logprob: float
    rank: int


class History(NamedTuple):
    """Candidates at the position of a beam's last generated token, linked to the earlier
    positions."""

    candidates: list[Candidate]
    before: History | None


@dataclass(frozen=True, slots=True, eq=False)
class Beam:
    """A token sequence with its cumulative log-probability."""

    token_ids: list[int]
    """The prompt tokens, followed by the generated tokens."""
    cum_logprob: float
    history: History | None
    """None for the prompt, and if log-probabilities are not requested."""
    finish_reason: str = "length"
    stop_reason: int | str | None = None
    """The end-of-sequence token or the stop string that ended the sequence."""
    text: BeamText | None = None
    """None without stop strings."""

    def candidates(self) -> list[list[Candidate]]:
        """The candidates of each generated token, in order."""
        found, history = [], self.history
        while history is not None:
            found.append(history.candidates)
            history = history.before
        return found[::-1]


class _Step(NamedTuple):
    """A beam with one more token, before the selection."""

    cum_logprob: float
    beam: Beam
    candidates: list[Candidate]
    token_id: int
    text: BeamText | None = None


_value = attrgetter("cum_logprob")


class BeamSearch:
    """The beams of one prompt. The rules are vLLM's.

    At each step every beam offers its 2 x `beam_width` best next tokens, except tokens that cannot
    be chosen, for example because a grammar forbids them. A token that is an end-of-sequence token
    or completes a stop string ends a sequence. Of the other sequences, the `beam_width` with the
    highest sums of log-probabilities continue; among equal sums, those of earlier beams win. At the
    end, the sequences with the best scores are returned, ended or not. The search stops before
    `max_tokens` if no beam can score better than the ended sequences.
    """

    def __init__(
        self,
        base: EngineInput,
        params: BeamSearchParams,
        *,
        max_tokens: int,
        eos_token_ids: Collection[int],
        keeps_logprobs: bool,
        stop_strings: StopStrings | None = None,
        never_generated: ForbiddenTokens | None = None,
    ) -> None:
        """`base`: the request of the first step. `max_tokens`: at most the room in the context.
        `eos_token_ids`: tokens that end a sequence. `keeps_logprobs`: keep the log-probabilities of
        all positions for the result. `stop_strings`: those of `params`; None without any.
        `never_generated`: tokens that the model forbids."""
        self.base = base
        self.params = params
        self._eos_token_ids = frozenset(eos_token_ids)
        self._never = never_generated or ForbiddenTokens()
        self._endings = WordEndings(self._never.words)
        self._num_offered = 2 * params.beam_width
        self._keeps_logprobs = keeps_logprobs
        self._longest = len(base.prompt_token_ids) + max_tokens
        self.num_steps_left = max_tokens
        """Maximum number of steps left."""
        self._num_steps = 0
        self.stop_strings = stop_strings
        prompt = base.prompt_token_ids
        text = None if stop_strings is None else stop_strings.begin(prompt)
        self._beams = [Beam(prompt, 0.0, None, text=text)]
        """The beams that continue, the best first."""
        self._ended: list[Beam] = []
        """The best sequences that have ended, the best first."""
        self._is_aborted = False
        self.num_cached_tokens: int | None = None
        """Cached tokens of the prompt; None before the first step."""

    @property
    def num_prompt_tokens(self) -> int:
        """Number of prompt tokens."""
        return len(self.base.prompt_token_ids)

    @property
    def num_beams(self) -> int:
        """Number of requests of the next step, if there is one."""
        return len(self._beams)

    @property
    def is_done(self) -> bool:
        """Whether the search is complete."""
        return (
            self._is_aborted or not self.num_steps_left or not self._beams or self._cannot_improve()
        )

    @property
    def size(self) -> int:
        """Cost of one step in the front end, in candidates; copied tokens count a fraction of
        that."""
        num_tokens = self._longest - self.num_steps_left
        return self.params.beam_width * (self._num_offered + 32 + num_tokens // 16)

    def inputs(self) -> list[EngineInput]:
        """The requests of the next step, one for each beam. They have the user's request id."""
        if not self._num_steps:
            return [self.base]
        [core], now = self.base.core_requests, clock.now()
        virtual = core.prompt_token_ids[: self.base.num_virtual_tokens]
        inputs = []
        for index, beam in enumerate(self._beams):
            own = msgspec.structs.replace(
                core,
                request_id=f"{core.request_id}.{self._num_steps}.{index}",
                prompt_token_ids=[*virtual, *beam.token_ids],
                num_reply_tokens=len(beam.token_ids) - self.num_prompt_tokens,
                arrival_time=now,
            )
            inputs.append(
                replace(
                    self.base,
                    prompt_token_ids=beam.token_ids,
                    core_requests=[own],
                    arrival_time=now,
                )
            )
        return inputs

    def advance(self, outputs: Sequence[RequestOutput]) -> None:
        """Process the outputs of the requests of `inputs`, in their order. Raises
        EngineGenerateError if a request failed."""
        if self.num_cached_tokens is None:
            self.num_cached_tokens = outputs[0].num_cached_tokens or 0
        for output in outputs:
            reason = output.outputs[0].finish_reason
            if reason == "error":
                raise EngineGenerateError(output.error or "the engine failed")
            self._is_aborted |= reason == "abort"
        if self._is_aborted:
            self._beams = [replace(beam, finish_reason="abort") for beam in self._beams]
            return
        self._num_steps += 1
        self.num_steps_left -= 1
        ends: list[Beam] = []
        steps: list[_Step] = []
        forbidden = self._never.at_first(self._num_steps - 1)
        for beam, output in zip(self._beams, outputs, strict=True):
            here = forbidden.union(self._endings.after(beam.token_ids))
            found = _best(output, self.base.params.logprobs, self.params.allowed_token_ids)
            candidates = [one for one in found if one.token_id not in here]
            ends_here = self._ends_among(candidates)
            for token_id, logprob, _ in candidates[: self._num_offered]:
                text, stop = self._text(beam, token_id)
                step = _Step(beam.cum_logprob + logprob, beam, candidates, token_id, text)
                if token_id in ends_here:
                    ends.append(self._made(step, token_id))
                elif stop is not None:
                    ends.append(self._made(step, stop))
                else:
                    steps.append(step)
        width = self.params.beam_width
        self._ended = nlargest(width, [*self._ended, *ends], key=self.score)
        self._beams = [self._made(step) for step in nlargest(width, steps, key=_value)]

    def best(self) -> list[Beam]:
        """The sequences with the best scores, the best first."""
        found = [*self._ended, *self._beams]
        return nlargest(self.params.beam_width, found, key=self.score)

    def score(self, beam: Beam) -> float:
        """The score by which sequences are compared at the end."""
        return self._score(beam.cum_logprob, len(beam.token_ids))

    def _score(self, cum_logprob: float, length: int) -> float:
        num_generated = max(length - self.num_prompt_tokens, 1)
        power: float = num_generated**self.params.length_penalty
        return cum_logprob / power

    def _cannot_improve(self) -> bool:
        """Whether no continuation of the beams can be returned: sums only decrease, and among equal
        scores the sequence that ended earlier wins."""
        if len(self._ended) < self.params.beam_width:
            return False
        best = self._beams[0]
        lengths = (len(best.token_ids), self._longest)
        bound = max(self._score(best.cum_logprob, length) for length in lengths)
        return self.score(self._ended[-1]) >= bound

    def _ends_among(self, candidates: Sequence[Candidate]) -> frozenset[int]:
        """The tokens that end a sequence here. With `ignore_eos`, they end it only if a grammar
        allows nothing else."""
        eos = self._eos_token_ids
        has_grammar = self.params.structured_outputs is not None
        if not self.params.ignore_eos:
            return eos
        is_over = has_grammar and all(one.token_id in eos for one in candidates)
        return eos if is_over else frozenset()

    def _text(self, beam: Beam, token_id: int) -> tuple[BeamText | None, str | None]:
        """The text of a beam with one more token, and the stop string that the token completes."""
        if self.stop_strings is None or beam.text is None:
            return None, None
        return self.stop_strings.follow(beam.text, token_id)

    def _made(self, step: _Step, stop_reason: int | str | None = None) -> Beam:
        beam = step.beam
        history = History(step.candidates, beam.history) if self._keeps_logprobs else None
        tokens = [*beam.token_ids, step.token_id]
        finish_reason = "length" if stop_reason is None else "stop"
        return Beam(tokens, step.cum_logprob, history, finish_reason, stop_reason, step.text)


def _best(
    output: RequestOutput, asked: int | None, allowed: Collection[int] | None
) -> list[Candidate]:
    """The best next tokens in order, up to the requested number, without impossible ones. The
    engine's entry for the sampled token comes first and is removed unless it is one of the best.
    `allowed`: the tokens that were asked for by their ids."""
    found = output.outputs[0].logprobs
    if not isinstance(found, FlatLogprobs):
        raise EngineGenerateError("the output of a beam search step has no log-probabilities")
    ranks = [rank or 0 for rank in found.ranks]
    entries = list(map(Candidate, found.token_ids, found.logprobs, ranks))
    if allowed is not None:
        by_id = {one.token_id: one for one in entries}
        entries = [by_id[token_id] for token_id in allowed]
    elif asked is not None and 0 <= asked < len(entries):
        del entries[0]
    possible = [entry for entry in entries if entry.logprob > -math.inf]
    return sorted(possible, key=lambda entry: -entry.logprob)
