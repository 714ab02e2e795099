"""`BeamSearch`: the beam search of one prompt. What to compute next, and what came of it.

A beam's next token is a request of its own: its tokens so far in, the log-probabilities of the best
next ones out. All but the last block of it is in the prefix cache. Whoever drives a search runs the
requests of `inputs` and gives their outputs to `advance`, until `is_done`. One thread at a time.
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
from quire.outputs import FlatLogprobs, RequestOutput
from quire.system import clock

if TYPE_CHECKING:
    from quire.frontend.beams.stop_strings import BeamText, StopStrings
    from quire.frontend.inputs.input_processor import EngineInput


class Candidate(NamedTuple):
    """One of the best next tokens of a beam."""

    token_id: int
    logprob: float
    rank: int


class History(NamedTuple):
    """The candidates at the place of a beam's last generated token, and at those before it."""

    candidates: list[Candidate]
    before: History | None


@dataclass(frozen=True, slots=True, eq=False)
class Beam:
    """A sequence and what it is worth."""

    token_ids: list[int]
    """The prompt's, then the generated ones."""
    cum_logprob: float
    history: History | None
    """None for the prompt, and where nobody wants it."""
    finish_reason: str = "length"
    stop_reason: int | str | None = None
    """The end-of-sequence token or the stop string that ended it."""
    text: BeamText | None = None
    """None without stop strings."""

    def candidates(self) -> list[list[Candidate]]:
        """Those of each generated token, in order."""
        found, history = [], self.history
        while history is not None:
            found.append(history.candidates)
            history = history.before
        return found[::-1]


class _Step(NamedTuple):
    """A beam with one more token, which may not be kept."""

    cum_logprob: float
    beam: Beam
    candidates: list[Candidate]
    token_id: int
    text: BeamText | None = None


_value = attrgetter("cum_logprob")


class BeamSearch:
    """The beams of one prompt. The rules are vLLM's.

    At each step every beam offers its 2 x `beam_width` best next tokens. Those that are the end-of-
    sequence token, or complete a stop string, end a sequence; of the others the `beam_width` best
    by the sum of their log-probabilities go on, where sums are equal the earlier beam's. Tokens
    that cannot be chosen, as a grammar forbids them, are not offered. At the end
    the best by score are returned, of those that have ended and those that have not. The search is
    over before `max_tokens` when none of the beams can become better than those that have ended.
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
    ) -> None:
        """`base` is the request of the first step. `max_tokens`: no more than the context has room
        for. `eos_token_ids`: the tokens that end a sequence. `keeps_logprobs`: those of all places
        are wanted at the end. `stop_strings`: those of `params`, if there are any."""
        self.base = base
        self.params = params
        self._eos_token_ids = frozenset(eos_token_ids)
        self._num_offered = 2 * params.beam_width
        self._keeps_logprobs = keeps_logprobs
        self._longest = len(base.prompt_token_ids) + max_tokens
        self.num_steps_left = max_tokens
        """At most."""
        self._num_steps = 0
        self.stop_strings = stop_strings
        prompt = base.prompt_token_ids
        text = None if stop_strings is None else stop_strings.begin(prompt)
        self._beams = [Beam(prompt, 0.0, None, text=text)]
        """Those that go on, the best first."""
        self._ended: list[Beam] = []
        """The best of those that have ended, the best first."""
        self._is_aborted = False
        self.num_cached_tokens: int | None = None
        """Of the prompt; None before the first step."""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens before the first generated one."""
        return len(self.base.prompt_token_ids)

    @property
    def num_beams(self) -> int:
        """Requests of the next step, if there is one."""
        return len(self._beams)

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to compute."""
        return (
            self._is_aborted or not self.num_steps_left or not self._beams or self._cannot_improve()
        )

    @property
    def size(self) -> int:
        """The work of one step in the front end, in candidates, beside tokens that are copied."""
        num_tokens = self._longest - self.num_steps_left
        return self.params.beam_width * (self._num_offered + 32 + num_tokens // 16)

    def inputs(self) -> list[EngineInput]:
        """The requests of the next step, one for each beam. They have the user's id."""
        if not self._num_steps:
            return [self.base]
        [core], now = self.base.core_requests, clock.now()
        inputs = []
        for index, beam in enumerate(self._beams):
            own = msgspec.structs.replace(
                core,
                request_id=f"{core.request_id}.{self._num_steps}.{index}",
                prompt_token_ids=beam.token_ids,
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
        """Takes in the outputs of the requests of `inputs`, in their order. Raises
        EngineGenerateError if one failed."""
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
        for beam, output in zip(self._beams, outputs, strict=True):
            candidates = _best(output, self.base.params.logprobs)
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
        """The best sequences by score, the best first."""
        found = [*self._ended, *self._beams]
        return nlargest(self.params.beam_width, found, key=self.score)

    def score(self, beam: Beam) -> float:
        """What sequences are compared by at the end."""
        length = len(beam.token_ids)
        if beam.token_ids[-1] in self._eos_token_ids:
            length -= 1
        return self._score(beam.cum_logprob, length)

    def _score(self, cum_logprob: float, length: int) -> float:
        power: float = max(length, 1) ** self.params.length_penalty
        return cum_logprob / power

    def _cannot_improve(self) -> bool:
        """Whether no sequence that begins with one of the beams can be returned: sums only fall,
        and among equals those that ended earlier are returned."""
        if len(self._ended) < self.params.beam_width:
            return False
        best = self._beams[0]
        lengths = (len(best.token_ids), self._longest)
        bound = max(self._score(best.cum_logprob, length) for length in lengths)
        return self.score(self._ended[-1]) >= bound

    def _ends_among(self, candidates: Sequence[Candidate]) -> frozenset[int]:
        """The tokens that end a sequence here. One that is to be ignored does where a grammar
        allows nothing else."""
        eos = self._eos_token_ids
        has_grammar = self.params.structured_outputs is not None
        if not self.params.ignore_eos:
            return eos
        is_over = has_grammar and all(one.token_id in eos for one in candidates)
        return eos if is_over else frozenset()

    def _text(self, beam: Beam, token_id: int) -> tuple[BeamText | None, str | None]:
        """The text of a beam with one more token, and the stop string that it completes."""
        if self.stop_strings is None or beam.text is None:
            return None, None
        return self.stop_strings.follow(beam.text, token_id)

    def _made(self, step: _Step, stop_reason: int | str | None = None) -> Beam:
        beam = step.beam
        history = History(step.candidates, beam.history) if self._keeps_logprobs else None
        tokens = [*beam.token_ids, step.token_id]
        finish_reason = "length" if stop_reason is None else "stop"
        return Beam(tokens, step.cum_logprob, history, finish_reason, stop_reason, step.text)


def _best(output: RequestOutput, asked: int | None) -> list[Candidate]:
    """The best next tokens in order, as many as were asked for, but for those that are impossible.
    The one that the engine chose comes first; it is left out if it is not among them."""
    found = output.outputs[0].logprobs
    if not isinstance(found, FlatLogprobs):
        raise EngineGenerateError("a step of a beam search came without log-probabilities")
    ranks = [rank or 0 for rank in found.ranks]
    entries = list(map(Candidate, found.token_ids, found.logprobs, ranks))
    if asked is not None and 0 <= asked < len(entries):
        del entries[0]
    possible = [entry for entry in entries if entry.logprob > -math.inf]
    return sorted(possible, key=lambda entry: -entry.logprob)
