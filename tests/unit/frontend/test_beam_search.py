"""BeamSearch: the rules, against the plainest form of them, on a model that is a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quire.beam_search import BeamSearchParams
from quire.config.records import EngineConfig
from quire.errors import EngineGenerateError, RequestError
from quire.frontend.arguments import EngineInput, RequestOptions
from quire.frontend.beam_begin import begin_search, request_output_of, sequences_of
from quire.frontend.beam_search import BeamSearch
from quire.frontend.inputs.input_processor import InputProcessor
from quire.inputs import TokensPrompt
from quire.outputs import CompletionOutput, FlatLogprobs, RequestOutput
from quire.tokenizer import Tokenizer, detokenizer_of
from quire.tokenizer.window_detokenizer import WindowDetokenizer

MakeConfig = Callable[..., EngineConfig]
PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture
def processor(make_config: MakeConfig, tokenizer: Tokenizer) -> InputProcessor:
    return InputProcessor(make_config(), tokenizer)


class Table:
    """Log-probabilities that the last tokens decide; many of them are equal."""

    def __init__(self, eos: int, likes_eos: float, seed: int = 0) -> None:
        self._eos, self._likes_eos, self._seed = eos, likes_eos, seed

    def logprobs(self, token_ids: list[int]) -> np.ndarray:
        random = np.random.default_rng([self._seed, *token_ids[-2:]])
        logits = np.round(random.standard_normal(288) * 2, 1)
        logits[self._eos] = self._likes_eos + random.standard_normal()
        found: np.ndarray = logits - np.log(np.exp(logits).sum())
        return found

    def best(self, token_ids: list[int], count: int) -> list[tuple[int, float]]:
        values = self.logprobs(token_ids)
        order = np.argsort(-values, kind="stable")[:count]
        return [(int(token), float(values[token])) for token in order]

    def output(self, request: EngineInput, chosen: int | None = None) -> RequestOutput:
        """What the engine would give: the chosen token first, each token once."""
        best = self.best(request.prompt_token_ids, request.params.logprobs or 0)
        if chosen is not None:
            value = float(self.logprobs(request.prompt_token_ids)[chosen])
            best = [(chosen, value), *(one for one in best if one[0] != chosen)]
        flat = FlatLogprobs()
        flat.append_fast(*zip(*((*one, 1 + rank) for rank, one in enumerate(best)), strict=True))
        return output_of(request, flat, "length")


def output_of(request: EngineInput, flat: FlatLogprobs | None, reason: str) -> RequestOutput:
    one = CompletionOutput(0, "", [0], None, flat, finish_reason=reason)
    return RequestOutput("r", None, request.prompt_token_ids, None, [one], True)


def plain_search(
    table: Table,
    width: int,
    steps: int,
    eos: int,
    ignore_eos: bool,
    penalty: float,
    stops: Callable[[list[int]], bool] = lambda _: False,
) -> list[tuple[list[int], float]]:
    """The rules in their plainest form: every sequence is kept, and sorted at the end."""
    beams, completed = [(PROMPT, 0.0)], []
    for _ in range(steps):
        grown = []
        for tokens, total in beams:
            for token, logprob in table.best(tokens, 2 * width):
                is_end = (token == eos and not ignore_eos) or stops([*tokens, token])
                (completed if is_end else grown).append(([*tokens, token], total + logprob))
        beams = sorted(grown, key=lambda one: -one[1])[:width]

    def score(one: tuple[list[int], float]) -> float:
        return one[1] / (len(one[0]) - len(PROMPT)) ** penalty

    return sorted([*completed, *beams], key=score, reverse=True)[:width]


def run(search: BeamSearch, table: Table, chosen: int | None = None) -> int:
    """The number of steps."""
    count = 0
    while not search.is_done:
        search.advance([table.output(request, chosen) for request in search.inputs()])
        count += 1
    return count


@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.5])
@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("likes_eos", [-2.0, 3.0, 6.0])
def test_the_same_sequences_as_by_the_plain_rules(
    processor: InputProcessor, width: int, penalty: float, ignore_eos: bool, likes_eos: float
) -> None:
    eos = processor.eos_token_id
    assert eos is not None
    params = BeamSearchParams(width, 9, ignore_eos=ignore_eos, length_penalty=penalty)
    for seed in range(4):
        table = Table(eos, likes_eos, seed)
        search = begin_search(processor, "r", PROMPT, params)
        run(search, table)
        found = [(beam.token_ids, beam.cum_logprob) for beam in search.best()]
        assert found == plain_search(table, width, 9, eos, ignore_eos, penalty)


def test_every_end_of_sequence_token_ends_a_sequence(
    make_config: MakeConfig, tokenizer: Tokenizer
) -> None:
    config = make_config()
    config = replace(config, model=replace(config.model, eos_token_ids=(7,)))
    processor = InputProcessor(config, tokenizer)
    search = begin_search(processor, "r", PROMPT, BeamSearchParams(4, 9))
    run(search, Table(7, 6.0))
    ended = [beam for beam in search.best() if beam.finish_reason == "stop"]
    assert {beam.stop_reason for beam in ended} == {7, processor.eos_token_id}


def test_a_priority_for_each_prompt(processor: InputProcessor) -> None:
    options = RequestOptions(priority=-4)
    search = begin_search(processor, "r", PROMPT, BeamSearchParams(2, 3), options=options)
    assert search.base.core_requests[0].priority == -4


@pytest.mark.parametrize("width", [1, 3, 6])
@pytest.mark.parametrize("stops", [["e"], ["ab", "\u00e9", "t", "5"], list("abcdefghijkl")])
def test_stop_strings_end_sequences(
    processor: InputProcessor, tokenizer: Tokenizer, width: int, stops: list[str]
) -> None:
    eos = processor.eos_token_id
    assert eos is not None

    def text_of(ids: list[int]) -> str:
        detokenizer = detokenizer_of(tokenizer, PROMPT)
        return detokenizer.push(ids[len(PROMPT) :])

    num_stopped = 0
    for seed in range(4):
        table = Table(eos, 1.0, seed)
        params = BeamSearchParams(width, 12, stop=stops, include_stop_str_in_output=seed % 2 > 0)
        search = begin_search(processor, "r", PROMPT, params)
        run(search, table)
        plain = plain_search(
            table, width, 12, eos, False, 1.0, lambda ids: any(s in text_of(ids) for s in stops)
        )
        assert [(beam.token_ids, beam.cum_logprob) for beam in search.best()] == plain
        for one, beam in zip(
            request_output_of(search, tokenizer).outputs, search.best(), strict=True
        ):
            whole = text_of(beam.token_ids)
            if isinstance(one.stop_reason, str):
                num_stopped += 1
                assert one.finish_reason == "stop"
                assert one.token_ids == beam.token_ids[len(PROMPT) :]
                end = whole.index(one.stop_reason) + len(one.stop_reason) * (seed % 2)
                assert one.text == whole[:end]
            else:
                assert not any(stop in whole for stop in stops)
    assert num_stopped or len(stops) < 5 or width == 1


def test_a_window_detokenizer_is_copied_with_its_window(tokenizer: Tokenizer) -> None:
    """`WindowDetokenizer` keeps a list."""
    one = WindowDetokenizer(tokenizer, PROMPT, frozenset(), {})
    other = one.copy()
    assert one.push([70, 71]) == other.copy().push([70, 71]) == other.push([70, 71])


def test_stop_strings_need_a_tokenizer(make_config: MakeConfig) -> None:
    processor = InputProcessor(make_config(), None)
    with pytest.raises(RequestError, match="require a tokenizer"):
        begin_search(processor, "r", PROMPT, BeamSearchParams(2, 4, stop="x"))


def test_the_search_ends_when_nothing_can_become_better(processor: InputProcessor) -> None:
    eos = processor.eos_token_id
    assert eos is not None
    table = Table(eos, 9.0)
    search = begin_search(processor, "r", PROMPT, BeamSearchParams(2, 40, length_penalty=0.0))
    assert run(search, table) < 6
    search = begin_search(processor, "r", PROMPT, BeamSearchParams(2, 40, ignore_eos=True))
    assert run(search, table) == 40


def test_what_the_engine_chooses_means_nothing(processor: InputProcessor) -> None:
    eos = processor.eos_token_id
    assert eos is not None
    table, params = Table(eos, 1.0), BeamSearchParams(2, 6, temperature=1.0)
    found = []
    for chosen in (None, 7, eos):
        search = begin_search(processor, "r", PROMPT, params)
        run(search, table, chosen)
        found.append([beam.token_ids for beam in search.best()])
    assert found[0] == found[1] == found[2]


def test_requests_of_one_token_with_ids_of_their_own(processor: InputProcessor) -> None:
    table, params = Table(0, 0.0), BeamSearchParams(3, 4, ignore_eos=True)
    prompt = TokensPrompt(prompt_token_ids=PROMPT, cache_salt="mine")
    search = begin_search(processor, "r", prompt, params, options=RequestOptions(priority=5))
    ids, counts = [], []
    while not search.is_done:
        inputs = search.inputs()
        counts.append(len(inputs))
        for request in inputs:
            [core] = request.core_requests
            ids.append(core.request_id)
            assert (request.request_id, core.scope.salt, core.priority) == ("r", "mine", 5)
            assert core.prompt_token_ids == request.prompt_token_ids
            assert (core.sampling_params.max_tokens, core.sampling_params.logprobs) == (1, 6)
        search.advance([table.output(request) for request in inputs])
    assert counts == [1, 3, 3, 3]
    assert len(set(ids)) == len(ids)


def test_the_context_ends_sequences(processor: InputProcessor) -> None:
    limit = processor.model_config.max_model_len
    search = begin_search(
        processor, "r", [1] * (limit - 3), BeamSearchParams(2, 50, ignore_eos=True)
    )
    assert run(search, Table(0, 0.0)) == 3
    assert {len(beam.token_ids) for beam in search.best()} == {limit}
    assert {beam.finish_reason for beam in search.best()} == {"length"}


def test_an_abort_gives_what_there_is(processor: InputProcessor) -> None:
    table = Table(0, 0.0)
    search = begin_search(processor, "r", PROMPT, BeamSearchParams(2, 5, ignore_eos=True))
    search.advance([table.output(request) for request in search.inputs()])
    first, second = search.inputs()
    search.advance([table.output(first), output_of(second, None, "abort")])
    assert search.is_done
    best = search.best()
    assert [(len(beam.token_ids), beam.finish_reason) for beam in best] == [(6, "abort")] * 2


def test_a_step_that_failed_is_an_error(processor: InputProcessor) -> None:
    search = begin_search(processor, "r", PROMPT, BeamSearchParams(2, 5))
    failed = output_of(search.inputs()[0], None, "error")
    failed.error = "layer 3 is not finite"
    with pytest.raises(EngineGenerateError, match="layer 3 is not finite"):
        search.advance([failed])


def test_what_callers_get(processor: InputProcessor, tokenizer: Tokenizer) -> None:
    eos = processor.eos_token_id
    assert eos is not None
    table = Table(eos, 9.0)
    for keeps in (False, True):
        params = BeamSearchParams(2, 4, include_stop_str_in_output=keeps)
        search = begin_search(processor, "r", {"prompt": "abc"}, params, num_logprobs=0)
        run(search, table)
        best = sequences_of(search, tokenizer).sequences[0]
        prompt = search.base.prompt_token_ids
        assert best.orig_prompt == {"type": "token", "prompt": "abc", "prompt_token_ids": prompt}
        assert best.tokens == [*prompt, eos]
        assert best.text == "abc"
        assert (best.finish_reason, best.stop_reason) == ("stop", eos)
        assert [next(iter(position)) for position in best.logprobs] == [eos]
        assert best.cum_logprob == best.logprobs[0][eos].logprob
        output = request_output_of(search, tokenizer)
        one = output.outputs[0]
        assert (one.text, one.token_ids) == ("", [eos] if keeps else [])
        assert (one.finish_reason, one.stop_reason) == ("stop", eos)
        other = output.outputs[1]
        assert isinstance(other.logprobs, FlatLogprobs)
        assert len(other.logprobs) == len(other.token_ids)
        for token, position in zip(other.token_ids, other.logprobs, strict=True):
            assert position is not None
            assert next(iter(position)) == token
            assert len(position) == 4
    search = begin_search(processor, "r", "abc", params)
    run(search, table)
    assert request_output_of(search, tokenizer).outputs[0].logprobs is None


@pytest.mark.parametrize(("num_logprobs", "asked"), [(None, 4), (3, 4), (9, 9), (-1, -1)])
def test_as_many_log_probabilities_as_are_wanted(
    make_config: MakeConfig, tokenizer: Tokenizer, num_logprobs: int | None, asked: int
) -> None:
    processor = InputProcessor(make_config(max_logprobs=-1), tokenizer)
    search = begin_search(processor, "r", PROMPT, BeamSearchParams(2, 5), num_logprobs=num_logprobs)
    assert search.base.params.logprobs == asked


def test_the_width_is_bounded_before_anything_is_computed(
    make_config: MakeConfig, tokenizer: Tokenizer
) -> None:
    processor = InputProcessor(make_config(), tokenizer)
    message = r"beam_width 11 needs the log-probabilities of 2 x 11 = 22 tokens at each step, more "
    message += r"than max_logprobs 20. Choose a beam_width of at most 10, or start the engine with"
    with pytest.raises(RequestError, match=message) as caught:
        begin_search(processor, "r", PROMPT, BeamSearchParams(11, 5))
    assert caught.value.parameter == "beam_width"
    begin_search(processor, "r", PROMPT, BeamSearchParams(10, 5))
    whole = InputProcessor(make_config(max_logprobs=-1), tokenizer)
    search = begin_search(whole, "r", PROMPT, BeamSearchParams(288, 5))
    assert search.base.params.logprobs == 288  # the whole vocabulary


def test_parameters_of_another_kind(processor: InputProcessor) -> None:
    wrong: Any = {"beam_width": 2}
    with pytest.raises(TypeError, match="params must be BeamSearchParams, but got dict"):
        begin_search(processor, "r", PROMPT, wrong)
    params = BeamSearchParams(2, 5)
    params.length_penalty = float("nan")
    with pytest.raises(RequestError, match="length_penalty must be a finite number, got nan"):
        begin_search(processor, "r", PROMPT, params)
