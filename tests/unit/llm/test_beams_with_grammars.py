"""LLM.beam_search with structured outputs: each beam follows the grammar on its own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher
from tiny_checkpoint import write_tiny_checkpoint

from quire.beam_search import BeamSearchParams, BeamSearchSequence
from quire.errors import RequestError
from quire.llm import LLM
from quire.params import SamplingParams
from quire.structured.matcher import GrammarMatcher
from quire.structured.params import StructuredOutputsParams
from quire.structured.source import grammar_of
from quire.structured.vocabulary import Vocabulary, load_vocabulary
from quire.tokenizer.for_model import vocabulary_source

PROMPT = "Say it: "
VOCAB_SIZE = 288
OBJECT = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": ["x", "yy"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    model_dir = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    with LLM(str(model_dir), backend="reference", max_model_len=128, max_logprobs=-1) as made:
        yield made


@pytest.fixture(scope="module")
def vocabulary(llm: LLM) -> Vocabulary:
    return load_vocabulary(vocabulary_source(llm.llm_engine.input_processor.model_config))


def found_by(llm: LLM, width: int, max_tokens: int, **params: Any) -> list[BeamSearchSequence]:
    [output] = llm.beam_search([PROMPT], BeamSearchParams(width, max_tokens, **params))
    return output.sequences


def reply_of(llm: LLM, one: BeamSearchSequence) -> str:
    tokenizer = llm.get_tokenizer()
    ids = one.tokens[len(tokenizer.encode(PROMPT)) :]
    return tokenizer.decode(ids, skip_special_tokens=True)


def plain_search(
    llm: LLM, vocabulary: Vocabulary, spec: StructuredOutputsParams, width: int, steps: int
) -> list[tuple[list[int], float]]:
    """The rules in their plainest form: the log-probabilities of the whole vocabulary without a
    grammar, and a grammar that reads every sequence from its begin."""
    prompt = llm.get_tokenizer().encode(PROMPT)
    eos = llm.llm_engine.input_processor.eos_token_id
    whole = SamplingParams(max_tokens=1, logprobs=-1, temperature=0)
    text = grammar_of(spec, vocabulary.added)

    def best(tokens: list[int]) -> list[tuple[int, float]]:
        [output] = llm.generate([tokens], whole, use_tqdm=False)
        [place] = output.outputs[0].logprobs
        values = np.array([place[token].logprob for token in range(VOCAB_SIZE)])
        matcher = GrammarMatcher.start(LLMatcher(vocabulary.tokenizer, text), VOCAB_SIZE)
        if tokens[len(prompt) :]:
            matcher.advance(tokens[len(prompt) :])
        bits = np.unpackbits(matcher.mask.view(np.uint8), bitorder="little")[:VOCAB_SIZE]
        values[bits == 0] = -np.inf
        values -= np.log(np.exp(values).sum())
        order = [int(token) for token in np.argsort(-values, kind="stable") if bits[token]]
        return [(token, float(values[token])) for token in order[: 2 * width]]

    beams: list[tuple[list[int], float]] = [(prompt, 0.0)]
    completed: list[tuple[list[int], float]] = []
    for _ in range(steps):
        grown = []
        for tokens, total in beams:
            for token, logprob in best(tokens):
                (completed if token == eos else grown).append(([*tokens, token], total + logprob))
        beams = sorted(grown, key=lambda one: -one[1])[:width]
    found = [*completed, *beams]
    return sorted(found, key=lambda o: -o[1] / (len(o[0]) - len(prompt)))[::-1][-width:][::-1]


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize(
    "fields",
    [{"choice": ["one", "two", "three"]}, {"regex": "[ab]{2,4}c?"}, {"json": OBJECT},
     {"grammar": 'start: "(" start ")" | "x"'}],
    ids=lambda fields: next(iter(fields)),
)  # fmt: skip
def test_the_same_sequences_as_by_the_plain_rules(
    llm: LLM, vocabulary: Vocabulary, fields: dict[str, Any], width: int
) -> None:
    spec = StructuredOutputsParams(**fields)
    found = found_by(llm, width, 5, structured_outputs=spec)
    plain = plain_search(llm, vocabulary, spec, width, 5)
    assert [one.tokens for one in found] == [tokens for tokens, _ in plain]
    sums = [one.cum_logprob for one in found]
    assert sums == pytest.approx([total for _, total in plain], abs=1e-4)


def test_what_has_ended_is_valid(llm: LLM) -> None:
    spec = {"json": OBJECT, "disable_any_whitespace": True}
    for one in found_by(llm, 4, 40, structured_outputs=spec):
        assert one.finish_reason == "stop"
        reply = json.loads(reply_of(llm, one))
        assert set(reply) == {"a", "b"}
        assert all(np.isfinite(each.logprob) for place in one.logprobs for each in place.values())


def test_no_more_sequences_than_the_grammar_has(llm: LLM) -> None:
    found = found_by(llm, 8, 20, structured_outputs={"choice": ["a", "b", "c"]})
    assert sorted(reply_of(llm, one) for one in found) == ["a", "b", "c"]


def test_an_end_that_is_ignored_comes_where_nothing_else_may(llm: LLM) -> None:
    found = found_by(llm, 2, 20, ignore_eos=True, structured_outputs={"regex": "a{1,6}"})
    assert [reply_of(llm, one) for one in found] == ["aaaaaa"] * len(found)
    assert {one.finish_reason for one in found} == {"stop"}
    endless = found_by(llm, 2, 9, ignore_eos=True, structured_outputs={"regex": "[ab]+"})
    assert {(one.finish_reason, len(reply_of(llm, one))) for one in endless} == {("length", 9)}


def test_a_stop_string_ends_a_sequence(llm: LLM) -> None:
    found = found_by(llm, 3, 30, stop=["zz"], structured_outputs={"regex": "[xyz]{40}"})
    assert {one.finish_reason for one in found} <= {"stop", "length"}
    for one in found:
        reply = reply_of(llm, one)
        assert re.fullmatch("[xyz]*", reply)
        assert (one.stop_reason == "zz") == reply.endswith("zz")


def test_the_same_bits_whatever_runs_beside(llm: LLM) -> None:
    specs = [{"choice": ["one", "two"]}, {"regex": "[ab]+"}, {"json": OBJECT}]
    params = [BeamSearchParams(3, 9, structured_outputs=spec) for spec in specs]  # type: ignore[arg-type]
    prompts = ["a", "another one", "a third, much longer than one block of tokens is"]
    for each in params:
        together = llm.beam_search(prompts, each)
        alone = llm.beam_search(prompts, each, concurrency_limit=1)
        assert [o.sequences for o in together] == [o.sequences for o in alone]


def test_a_wrong_grammar_is_refused_before_the_search(llm: LLM) -> None:
    with pytest.raises(RequestError, match="unclosed group"):
        found_by(llm, 2, 5, structured_outputs={"regex": "(a"})
    assert not llm.llm_engine.has_unfinished_requests()
