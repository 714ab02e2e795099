"""LLM.beam_search: through the engine, with all that surrounds it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.beam_search import BeamSearchOutput, BeamSearchParams
from quire.errors import EngineDeadError, RequestError
from quire.inputs import TokensPrompt
from quire.llm import LLM

PARAMS = BeamSearchParams(beam_width=3, max_tokens=6, ignore_eos=True)
PROMPT = list(range(100, 170))


@pytest.fixture(scope="module")
def llm(model_dir: Path) -> Iterator[LLM]:
    with LLM(str(model_dir), backend="reference", max_model_len=128) as made:
        yield made


def bits(outputs: list[BeamSearchOutput]) -> list[list[tuple[list[int], float]]]:
    return [[(one.tokens, one.cum_logprob) for one in output.sequences] for output in outputs]


def test_the_script_that_users_have(llm: LLM) -> None:
    prompts = [{"prompt": "Hello, my name is"}, {"prompt": "The future of AI is"}]
    outputs = llm.beam_search(prompts, PARAMS)  # type: ignore[arg-type]
    assert len(outputs) == 2
    tokenizer = llm.get_tokenizer()
    for prompt, output in zip(prompts, outputs, strict=True):
        ids = tokenizer.encode(prompt["prompt"])
        assert len(output.sequences) == 3
        sums = [one.cum_logprob for one in output.sequences]
        assert sums == sorted(sums, reverse=True)
        assert len({tuple(one.tokens) for one in output.sequences}) == 3
        for one in output.sequences:
            assert one.tokens[: len(ids)] == ids
            assert len(one.tokens) == len(ids) + 6
            assert one.text == tokenizer.decode(one.tokens, skip_special_tokens=True)
            assert len(one.logprobs) == 6
            new = one.tokens[len(ids) :]
            total = sum(
                place[token].logprob for place, token in zip(one.logprobs, new, strict=True)
            )
            assert one.cum_logprob == pytest.approx(total, abs=1e-9)
            assert {len(place) for place in one.logprobs} == {6}
            assert (one.finish_reason, one.lora_request) == ("length", None)


def test_a_width_of_one_without_an_end_is_greedy(llm: LLM) -> None:
    from quire.params import SamplingParams

    [output] = llm.beam_search(PROMPT, BeamSearchParams(1, 9, ignore_eos=True))
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    [greedy] = llm.generate(PROMPT, params, use_tqdm=False)
    assert output.sequences[0].tokens == PROMPT + greedy.outputs[0].token_ids


def test_the_same_bits_whatever_runs_beside(llm: LLM, model_dir: Path) -> None:
    prompts = [PROMPT[:length] for length in (70, 3, 33, 17)]
    together = bits(llm.beam_search(prompts, PARAMS))
    assert bits(llm.beam_search(prompts, PARAMS, concurrency_limit=1)) == together
    assert bits(llm.beam_search(prompts, PARAMS, concurrency_limit=3)) == together
    with LLM(
        str(model_dir), backend="reference", max_model_len=128, enable_prefix_caching=False,
        max_num_seqs=2, max_num_batched_tokens=16, num_gpu_blocks_override=12,
    ) as other:  # fmt: skip
        assert bits(other.beam_search(prompts, PARAMS)) == together


def test_prompts_are_computed_once(model_dir: Path) -> None:
    with LLM(
        str(model_dir), backend="reference", max_model_len=128, disable_log_stats=False
    ) as llm:
        llm.beam_search([PROMPT], PARAMS)
        found = {one.name: one for one in llm.get_metrics()}
        computed = (
            found["vllm:prefix_cache_queries"].value - found["vllm:prefix_cache_hits"].value  # type: ignore[attr-defined]
        )
    # The first step computes all 70. In the others each beam computes its last block, of up to 16.
    assert computed <= 70 + 5 * 3 * 16
    assert computed >= 70


def test_every_form_of_prompts(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("abc")
    forms: list[Any] = ["abc", ["abc"], ids, [ids], [TokensPrompt(prompt_token_ids=ids)]]
    found = [bits(llm.beam_search(form, PARAMS)) for form in forms]
    assert all(each == found[0] for each in found)
    assert llm.beam_search([], PARAMS) == []


def test_a_progress_bar_counts_steps(llm: LLM) -> None:
    from tqdm import tqdm

    out = io.StringIO()
    llm.beam_search(["a"], PARAMS, use_tqdm=lambda *items, **given: tqdm(*items, **given, file=out))
    assert "Beam search: 100%" in out.getvalue()
    assert "6/6" in out.getvalue()


@pytest.mark.parametrize("limit", [-1, 0, 1.0, True, "2", float("nan"), float("inf"), [2]])
def test_a_bad_concurrency_limit(llm: LLM, limit: Any) -> None:
    with pytest.raises(RequestError, match="concurrency_limit must be an integer of at least 1"):
        llm.beam_search(["a"], PARAMS, concurrency_limit=limit)


def test_one_wrong_prompt_and_none_is_run(llm: LLM) -> None:
    with pytest.raises(RequestError, match="cannot be empty"):
        llm.beam_search(["good", "", "good"], PARAMS)
    with pytest.raises(RequestError, match="beam_width 11 needs"):
        llm.beam_search(["good"], BeamSearchParams(11, 4))
    with pytest.raises(TypeError, match="params must be BeamSearchParams, but got NoneType"):
        llm.beam_search(["good"], None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="lora_request must be of type LoRARequest"):
        llm.beam_search(["good"], PARAMS, lora_request=object())  # type: ignore[arg-type]
    assert not llm.llm_engine.has_unfinished_requests()


def test_a_search_after_the_end_is_an_error(model_dir: Path) -> None:
    llm = LLM(str(model_dir), backend="reference", max_model_len=128)
    llm.close()
    with pytest.raises(EngineDeadError):
        llm.beam_search("a", PARAMS)
