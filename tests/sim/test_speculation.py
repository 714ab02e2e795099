"""Speculation changes neither tokens nor log-probabilities, whatever the proposer says."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import sweeps
from wrong_drafts import VOCABULARY, Liar, Oracle

from quire import LLM, RequestOutput, SamplingParams
from quire.errors import PromptError
from quire.scheduler.drafting.drafting import Drafting, RowCosts
from quire.scheduler.drafting.proposer import NUM_GRADES, Proposal, Proposer
from quire.scheduler.request import Request
from quire.scheduler.states import RequestStates
from quire.structured.params import StructuredOutputsParams

NUM_REQUESTS = 40


def requests(seed: int) -> tuple[list[list[int]], list[SamplingParams]]:
    chance = random.Random(seed)
    prompts, params = [], []
    for _ in range(NUM_REQUESTS):
        part = [chance.randrange(VOCABULARY) for _ in range(chance.randint(1, 9))]
        prompts.append(part * chance.randint(1, 6))
        temperature = chance.choice([0, 0, 0.3, 1.0])
        params.append(
            SamplingParams(
                temperature=temperature,
                seed=chance.randrange(99),
                top_p=chance.choice([1.0, 0.9]),
                top_k=chance.choice([0, 1, 5]),
                repetition_penalty=chance.choice([1.0, 1.0, 1.3]),
                presence_penalty=chance.choice([0.0, 0.5]),
                min_tokens=chance.choice([0, 6]),
                stop_token_ids=[*range(chance.choice([0, 20]))],
                logprobs=chance.choice([None, 0, 3]),
                prompt_logprobs=chance.choice([None, None, 1]),
                logit_bias=chance.choice([None, {7: 4.0}]),
                max_tokens=chance.randint(6, 40),
                n=chance.choice([1, 1, 2]) if temperature else 1,
                ignore_eos=True,
            )
        )
    return prompts, params


def answers(
    model_dir: Path,
    seed: int,
    *,
    proposer: Proposer | None = None,
    predicts: bool = False,
    **options: Any,
) -> Any:
    prompts: list[Any]
    prompts, params = requests(seed)
    if predicts:
        chance = random.Random(seed + 1)
        prompts = [
            {"prompt_token_ids": prompt, "prediction": prompt[: chance.randint(1, 9)] * 4}
            for prompt in prompts
        ]
    with LLM(str(model_dir), max_model_len=128, num_threads=1, **options) as llm:
        scheduler = llm.llm_engine.engine_core.scheduler
        if proposer is not None:
            scheduler.drafting = Drafting(
                scheduler.config.speculation, scheduler.drafting._look_ahead, proposer
            )
        outputs = llm.generate(prompts, params, use_tqdm=False)
        scheduler.check_integrity()
        if scheduler.drafting is not None:
            assert not scheduler.drafting._of_requests
            assert not scheduler.drafting._in_flight
    return [
        (output.prompt_logprobs, [
            (one.token_ids, one.logprobs, one.finish_reason, one.stop_reason)
            for one in output.outputs
        ])
        for output in outputs
    ]  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_seqs": 1},
        {"max_num_seqs": 40},
        {"max_num_seqs": 8, "num_gpu_blocks_override": 24},
        {"max_num_seqs": 8, "max_num_batched_tokens": 16, "kv_cache_dtype": "int8"},
    ],
    ids=["alone", "company", "preempted", "chunks-int8"],
)
def test_the_same_answers(model_dir: Path, options: dict[str, Any]) -> None:
    seed = sweeps.seed() or 0
    print(f"seed {seed}")
    wanted = answers(model_dir, seed, speculation=False, **options)
    liar = Liar()
    assert answers(model_dir, seed, **options) == wanted
    assert answers(model_dir, seed, proposer=liar, **options) == wanted
    suffix = {"method": "suffix", "num_speculative_tokens": 9, "prompt_lookup_min": 1}
    assert answers(model_dir, seed, predicts=True, speculative_config=suffix, **options) == wanted
    assert liar.num_proposals > 50


class AlwaysWrong(Proposer):
    """Makes the longest drafts that it may, of a token that no request gets."""

    def propose(self, request: Request, most: int) -> Proposal | None:  # noqa: ARG002
        return Proposal([VOCABULARY - 1] * most, NUM_GRADES - 1)

    def forget(self, request: Request) -> None:
        pass


def test_wrong_guesses_take_no_blocks_from_others(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool has room for both requests, but not for their longest drafts. Blocks of rejected
    drafts are kept for the next tokens."""
    monkeypatch.setattr(RowCosts, "seconds", lambda *_: 1.0)
    preempted: list[Request] = []
    preempt = RequestStates.preempt

    def noted(states: RequestStates, request: Request) -> None:
        preempted.append(request)
        preempt(states, request)

    monkeypatch.setattr(RequestStates, "preempt", noted)
    with LLM(str(model_dir), max_model_len=80, num_threads=1, num_gpu_blocks_override=5) as llm:
        scheduler = llm.llm_engine.engine_core.scheduler
        scheduler.drafting = Drafting(scheduler.config.speculation, None, AlwaysWrong())
        for name, count in (("long", 60), ("short", 10)):
            params = SamplingParams(
                temperature=0, max_tokens=count, ignore_eos=True, trace_decode_token_ids=[5] * count
            )
            llm.llm_engine.add_request(name, {"prompt_token_ids": [*range(17)]}, params)
        longest = 0
        while llm.llm_engine.has_unfinished_requests():
            llm.llm_engine.step()
            scheduler.check_integrity()
            longest = max(
                longest,
                *(16 * one.blocks.num_held - one.num_tokens for one in scheduler.states.running),
                0,
            )
    assert not preempted
    assert longest > 16, "blocks of rejected drafts"


def test_a_text_that_repeats_itself_takes_fewer_steps(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowCosts, "seconds", lambda *_: 1.0)
    params = SamplingParams(
        temperature=0, max_tokens=60, ignore_eos=True, trace_decode_token_ids=[5, 6, 7, 8] * 15
    )
    steps = []
    for speculation in (False, True):
        with LLM(str(model_dir), max_model_len=128, num_threads=1, speculation=speculation) as llm:
            llm.llm_engine.add_request("0", [1, 2, 3], params)
            num_steps, tokens = 0, list[int]()
            while llm.llm_engine.has_unfinished_requests():
                for output in llm.llm_engine.step():
                    tokens = list(output.outputs[0].token_ids)
                num_steps += 1
            assert tokens == [5, 6, 7, 8] * 15
            steps.append(num_steps)
    assert steps[1] < 0.7 * steps[0]


REPLY = [(37 * i) % 251 for i in range(48)]


def num_steps(llm: LLM, prompt: Any, params: SamplingParams) -> tuple[int, RequestOutput]:
    """Steps that a request takes, and its last output."""
    llm.llm_engine.add_request("0", prompt, params)
    count, found = 0, list[RequestOutput]()
    while llm.llm_engine.has_unfinished_requests():
        found += llm.llm_engine.step()
        count += 1
    return count, found[-1]


def test_a_prediction_saves_steps_and_is_counted(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right from the first token, and again after a place that differs."""
    monkeypatch.setattr(RowCosts, "seconds", lambda *_: 1.0)
    predicted = [*REPLY[:20], 99, *REPLY[21:]]
    params = SamplingParams(
        temperature=0, max_tokens=len(REPLY), ignore_eos=True, trace_decode_token_ids=REPLY
    )
    with LLM(
        str(model_dir), max_model_len=128, num_threads=1,
        per_request_spec_decode_metrics="detailed",
        speculative_config={"prompt_lookup_min": 3, "num_speculative_tokens": 16},
    ) as llm:  # fmt: skip
        prompt = {"prompt_token_ids": [1, 2, 3], "prediction": predicted}
        count, output = num_steps(llm, prompt, params)
        one = output.outputs[0]
        assert list(one.token_ids) == REPLY
        assert count < 16
        assert one.prediction is not None
        assert one.prediction.num_accepted >= 20
        assert 0 < one.prediction.num_rejected < 20
        counts = one.spec_decode_metrics
        assert counts is not None
        assert counts.num_draft_tokens == sum(counts.per_step_drafted)
        shown = counts.to_dict()
        assert shown["num_accepted_draft_tokens"] == sum(counts.per_step_accepted)
        assert sum(shown["acceptance_histogram"]) == len(counts.per_step_drafted)
        for wrong in (3, [1.5], [-1], [1 << 30], {"content": "x"}):
            with pytest.raises(PromptError, match=r"prediction|vocabulary"):
                llm.generate({"prompt_token_ids": [1], "prediction": wrong}, params)


def test_earlier_replies_of_the_same_tenant_save_steps(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of another tenant are never searched."""
    monkeypatch.setattr(RowCosts, "seconds", lambda *_: 1.0)
    reply = [(31 * i) % 251 for i in range(48)]
    params = SamplingParams(
        temperature=0, max_tokens=48, ignore_eos=True, trace_decode_token_ids=reply
    )
    counts = {}
    with LLM(
        str(model_dir), max_model_len=128, num_threads=1,
        speculative_config={"method": "suffix", "suffix_decoding_max_spec_factor": 4},
    ) as llm:  # fmt: skip
        for salt in ("a/1", "b/1", "a/2", "a"):
            prompt = {"prompt_token_ids": [1, 2, 3], "cache_salt": salt}
            counts[salt], output = num_steps(llm, prompt, params)
            assert list(output.outputs[0].token_ids) == reply
    assert counts["a/1"] == counts["b/1"] > 40
    assert counts["a/2"] < 25
    assert counts["a"] < 25


SCHEMA = {
    "type": "object",
    "properties": {
        "names": {"type": "array", "items": {"enum": ["red", "red and blue"]}, "maxItems": 6},
        "text": {"type": "string", "maxLength": 30},
    },
    "required": ["names", "text"],
}


def test_grammars_hold_along_the_guesses() -> None:
    """Guesses that a grammar forbids are left out; the others are checked under its masks."""
    params = [
        SamplingParams(
            temperature=temperature, seed=seed, max_tokens=60, logprobs=logprobs,
            presence_penalty=penalty,
            structured_outputs=StructuredOutputsParams(json=SCHEMA),
        )
        for seed, (temperature, logprobs, penalty) in enumerate(
            [(0, None, 0), (0, 1, 0), (1.0, None, 0.5), (1.0, 2, 0), (2.0, None, 0)] * 4
        )
    ]  # fmt: skip

    def replies(proposer: Proposer | None) -> Any:
        with LLM(
            num_threads=1, max_model_len=512, speculation=proposer is not None,
            disable_log_stats=False,
        ) as llm:  # fmt: skip
            scheduler = llm.llm_engine.engine_core.scheduler
            if proposer is not None:
                look_ahead = scheduler.drafting._look_ahead
                scheduler.drafting = Drafting(scheduler.config.speculation, look_ahead, proposer)
            outputs = llm.generate(["a"] * len(params), params, use_tqdm=False)
            stats = llm.get_metrics()
        accepted = sum(
            one.value for one in stats if one.name == "vllm:spec_decode_num_accepted_tokens"
        )
        return accepted, [(one.outputs[0].token_ids, one.outputs[0].logprobs) for one in outputs]

    none, wanted = replies(None)
    oracle = Oracle({seed: list(reply[0]) for seed, reply in enumerate(wanted)})
    accepted, found = replies(oracle)
    assert found == wanted
    assert none == 0
    assert oracle.num_right > 50
    assert accepted > 50
