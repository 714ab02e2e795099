"""Custom logits processors in an engine: what they are told is true, what they do not change is the
same to the bit, and a failure of theirs is one request's alone."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from logits_processors import (
    FAULTS,
    CannotBeMade,
    ChooserOfRequest,
    FlatTop,
    Fragile,
    InvariantLedger,
    Ledger,
    Logits,
    TargetOfRequest,
    TargetToken,
)

from quire.config.engine_args import AsyncEngineArgs
from quire.errors import ConfigError, RequestError
from quire.frontend.online.async_llm import AsyncLLM
from quire.llm import LLM
from quire.logits_processors import AdapterLogitsProcessor, LogitsProcessor
from quire.outputs import RequestOutput
from quire.params import SamplingParams
from quire.structured.params import StructuredOutputsParams

RANDOM = np.random.default_rng(8)
PROMPTS = [RANDOM.integers(0, 256, length).tolist() for length in (3, 17, 40, 9, 64, 75, 21, 30)]
CHANGES: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3, "temperature": 0, "frequency_penalty": 0.4},
    {"logit_bias": {5: 3.0, 9: -100, 255: 1.5}, "top_p": 0.9, "prompt_logprobs": 2},
    {"temperature": 0},
    {"allowed_token_ids": [*range(0, 256, 3)], "top_k": 40},
    {"bad_words": ["a", "bc"], "presence_penalty": 0.8, "prompt_logprobs": 0},
    {"temperature": 1.7, "min_p": 0.02, "max_tokens": 11},
    {"temperature": 0, "min_tokens": 20, "stop_token_ids": [7], "logprob_token_ids": [7, 8]},
]
PARAMS = [
    SamplingParams(**{"seed": 3, "max_tokens": 24, "ignore_eos": True, "logprobs": 2, **change})
    if "logprob_token_ids" not in change
    else SamplingParams(**{"seed": 3, "max_tokens": 24, "ignore_eos": True, **change})
    for change in CHANGES
]
COMPANIES: list[dict[str, Any]] = [
    {"num_threads": 2},
    {"max_num_batched_tokens": 7},
    {"max_num_seqs": 3},
    {"num_gpu_blocks_override": 12},
]


@pytest.fixture(scope="module")
def settings(model_dir: Path, backend: str) -> dict[str, Any]:
    return {"model": str(model_dir), "backend": backend, "max_model_len": 128, "num_threads": 1}


@pytest.fixture(scope="module")
def plain(settings: dict[str, Any]) -> list[RequestOutput]:
    """Without any processors."""
    with LLM(**settings) as llm:
        return llm.generate(PROMPTS, PARAMS, use_tqdm=False)


def bits(outputs: list[RequestOutput]) -> list[Any]:
    """Tokens and exact log-probabilities."""
    return [(one.outputs[0].token_ids, one.outputs[0].logprobs, one.prompt_logprobs)
            for one in outputs]  # fmt: skip


def run(settings: dict[str, Any], *processors: type[LogitsProcessor], **options: Any
        ) -> list[RequestOutput]:  # fmt: skip
    with LLM(**{**settings, **options}, logits_processors=[*processors]) as llm:
        return llm.generate(PROMPTS, PARAMS, use_tqdm=False)


@pytest.mark.parametrize(
    "processors", [[Ledger], [InvariantLedger], [InvariantLedger, Ledger, TargetToken]]
)
@pytest.mark.parametrize("options", COMPANIES, ids=str)
def test_a_processor_that_changes_nothing_changes_nothing(
    settings: dict[str, Any],
    plain: list[RequestOutput],
    processors: list[type[LogitsProcessor]],
    options: dict[str, Any],
) -> None:
    outputs = run(settings, *processors, **options)
    assert bits(outputs) == bits(plain)
    if "num_gpu_blocks_override" in options:
        assert any(one.metrics.num_preemptions for one in outputs if one.metrics)


@pytest.mark.parametrize("mode", ["raw_logits", "processed_logprobs", "processed_logits"])
def test_what_is_reported_is_the_same_too(settings: dict[str, Any], mode: str) -> None:
    with LLM(**settings, logprobs_mode=mode) as llm:
        expected = bits(llm.generate(PROMPTS, PARAMS, use_tqdm=False))
    outputs = run(settings, InvariantLedger, Ledger, logprobs_mode=mode, max_num_batched_tokens=50)
    assert bits(outputs) == expected


class Witness(Ledger):
    """Writes down what it is told of each request, and which token its row likes best."""

    seen: ClassVar[list[dict[int, tuple[list[int], list[int], int]]]] = []

    def apply(self, logits: Logits) -> Logits:
        self.seen.append(
            {
                place: (prompt, [*output], int(logits[place].argmax()))
                for place, (_, prompt, output) in self.requests.items()
            }
        )
        return logits


@pytest.mark.parametrize("options", COMPANIES, ids=str)
def test_what_a_processor_is_told_is_true(
    settings: dict[str, Any], options: dict[str, Any]
) -> None:
    Witness.seen.clear()
    params = [
        SamplingParams(temperature=0, max_tokens=9 + 3 * i, ignore_eos=True)
        for i in range(len(PROMPTS))
    ]
    with LLM(**{**settings, **options}, logits_processors=[Witness]) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        first = len(Witness.seen)
        llm.generate(PROMPTS[:2], params[:2], use_tqdm=False)
    tokens = {tuple(p): one.outputs[0].token_ids for p, one in zip(PROMPTS, outputs, strict=True)}
    told = Counter[tuple[int, ...]]()
    for step in Witness.seen[:first]:
        assert len({tuple(prompt) for prompt, _, _ in step.values()}) == len(step)
        for prompt, output, best in step.values():
            generated = tokens[tuple(prompt)]
            assert output == generated[: len(output)]
            assert len(output) == told[tuple(prompt)], "once for each token"
            assert best == generated[len(output)], "the row is that of the request"
            told[tuple(prompt)] += 1
    assert told == {prompt: len(generated) for prompt, generated in tokens.items()}
    assert {len(step) for step in Witness.seen[first:]} <= {1, 2}, "those that ended are gone"


def test_a_grammar_beside_a_processor(settings: dict[str, Any]) -> None:
    """It sees what the grammar allows, is told of tokens that nobody chose, and allows no more."""
    Witness.seen.clear()
    shape = StructuredOutputsParams(regex="abcdefgh[0-9]{3}xyz[a-f]{4}")
    common = {"max_tokens": 30, "seed": 5, "structured_outputs": shape}
    params = [
        SamplingParams(**common, logprobs=2),  # type: ignore[arg-type]
        SamplingParams(**common, temperature=0),  # type: ignore[arg-type]
        SamplingParams(**common, temperature=0, logit_bias={48: 30.0}),  # type: ignore[arg-type]
    ]
    with LLM(**settings) as llm:
        alone = llm.generate(PROMPTS[:3], params, use_tqdm=False)
    with LLM(**settings, logits_processors=[Witness, InvariantLedger, TargetToken]) as llm:
        beside = llm.generate(PROMPTS[:3], params, use_tqdm=False)
        params[1].extra_args = {"target_token": ord("Q")}
        last = llm.generate(PROMPTS[:3], params, use_tqdm=False)
    assert bits(beside) == bits(alone)
    for prompt, output in zip(PROMPTS, beside, strict=False):
        assert re.fullmatch(r"abcdefgh\d{3}xyz[a-f]{4}", output.outputs[0].text)
        mine = [(told, best) for step in Witness.seen for p, told, best in step.values()
                if p == prompt]  # fmt: skip
        tokens = output.outputs[0].token_ids
        assert all(told == tokens[: len(told)] for told, _ in mine)
        assert max(len(told) for told, _ in mine) >= len(tokens) - 2, "the last one is the end"
    assert bits(last)[0] == bits(alone)[0]
    assert last[1].outputs[0].finish_reason == "error"
    assert "left no token" in (last[1].error or "")


def test_aborted_requests_are_removed(settings: dict[str, Any]) -> None:
    Witness.seen.clear()
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with LLM(**settings, logits_processors=[Witness]) as llm:
        engine = llm.llm_engine
        for index, prompt in enumerate(PROMPTS[:4]):
            engine.add_request(str(index), prompt, params)
        for _ in range(6):
            engine.step()
        engine.abort_request(["1", "2"])
        engine.add_request("new", PROMPTS[5], params)
        engine.step()
        engine.step()
        engine.abort_request(["0", "3", "new"])
    before, after = Witness.seen[-3], Witness.seen[-1]
    assert {place: PROMPTS.index(prompt) for place, (prompt, _, _) in before.items()} == {
        0: 0, 1: 1, 2: 2, 3: 3
    }  # fmt: skip
    assert {place: PROMPTS.index(prompt) for place, (prompt, _, _) in after.items()} == {
        0: 0, 1: 5, 2: 3
    }  # fmt: skip


@pytest.mark.parametrize("processor", [TargetToken, TargetOfRequest])
def test_a_request_that_asks_is_changed_and_its_neighbours_are_not(
    settings: dict[str, Any], plain: list[RequestOutput], processor: type[LogitsProcessor]
) -> None:
    params = [one.clone() for one in PARAMS]
    params[3].extra_args, params[6].extra_args = {"target_token": 67}, {"target_token": 128}
    with LLM(**settings, logits_processors=[processor], max_num_batched_tokens=60) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        again = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    assert set(outputs[3].outputs[0].token_ids) == {67}
    assert set(outputs[6].outputs[0].token_ids) == {128}
    others = [i for i in range(len(PROMPTS)) if i not in (3, 6)]
    assert [bits(outputs)[i] for i in others] == [bits(plain)[i] for i in others]
    assert bits(again) == bits(plain)


def test_logprobs_are_of_the_models_own_logits(settings: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=1, logit_bias={3: -1.0})
    forced = params.clone()
    forced.extra_args = {"target_token": 67}
    for mode, is_raw in (("raw_logprobs", True), ("processed_logprobs", False)):
        with LLM(**settings, logprobs_mode=mode, logits_processors=[TargetToken]) as llm:
            free, bound = llm.generate(PROMPTS[:1] * 2, [params, forced], use_tqdm=False)
        [best], [chosen] = free.outputs[0].logprobs or [], bound.outputs[0].logprobs or []
        assert chosen[67].rank == 1 or is_raw
        assert (chosen[67].logprob == 0.0) is not is_raw
        assert ({*chosen} >= {*best}) is is_raw


def only_67(logits: Logits) -> Logits:
    kept = logits[67]
    logits[:] = -np.inf
    logits[67] = kept
    return logits


def test_objects_reach_processors_in_this_process(settings: dict[str, Any]) -> None:
    params = SamplingParams(
        n=2, seed=1, max_tokens=3, ignore_eos=True, extra_args={"chooser": only_67, 5: object()}
    )
    with LLM(**settings, logits_processors=[ChooserOfRequest]) as llm:
        [output] = llm.generate([PROMPTS[0]], params, use_tqdm=False)
    assert [one.token_ids for one in output.outputs] == [[67] * 3] * 2


@pytest.mark.parametrize("engine_mode", ["thread", "process"])
def test_objects_reach_an_engine_of_this_process_alone(
    settings: dict[str, Any], engine_mode: Any
) -> None:
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(**settings, logits_processors=["logits_processors:ChooserOfRequest"]),
        engine_mode=engine_mode,
    )

    async def tokens(**extra: Any) -> list[int]:
        params = SamplingParams(seed=1, max_tokens=3, ignore_eos=True, extra_args=extra)
        stream = engine.generate(PROMPTS[0], params, "a")
        return [output async for output in stream][-1].outputs[0].token_ids

    async def scenario() -> None:
        if engine_mode == "thread":
            assert await tokens(chooser=only_67) == [67] * 3
            return
        with pytest.raises(RequestError, match=r"extra_args must contain only JSON values if the"):
            await tokens(chooser=only_67)
        assert engine.get_num_unfinished_requests() == 0
        assert len(await tokens(other=[1, {"a": None}])) == 3

    try:
        asyncio.run(scenario())
    finally:
        engine.shutdown()


def test_the_order_of_the_steps(settings: dict[str, Any]) -> None:
    """After `allowed_token_ids` and `logit_bias`, before penalties; the argmax-invariant ones after
    penalties, divided by the temperature, and not for greedy requests."""
    Rows.seen.clear()
    params = SamplingParams(
        temperature=0.5, seed=1, max_tokens=2, ignore_eos=True, allowed_token_ids=[4, 5],
        logit_bias={5: 60.0}, presence_penalty=2.0,
    )  # fmt: skip
    with LLM(**settings, logits_processors=[InvariantRows, Rows]) as llm:
        [output] = llm.generate([PROMPTS[0]], params, use_tqdm=False)
        assert [kind for kind, _ in Rows.seen] == ["Rows", "InvariantRows"] * 2
        (_, before), (_, after) = Rows.seen[2:]
        llm.generate([PROMPTS[0]], SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
        assert [kind for kind, _ in Rows.seen[4:]] == ["Rows"]
    assert output.outputs[0].token_ids[0] == 5
    assert np.flatnonzero(np.isfinite(before[0])).tolist() == [4, 5]
    assert before[0, 5] > before[0, 4] + 30
    assert after[0, 4] == before[0, 4] * 2
    assert after[0, 5] == (before[0, 5] - np.float32(2)) * 2


class Rows(Ledger):
    seen: ClassVar[list[tuple[str, Logits]]] = []

    def apply(self, logits: Logits) -> Logits:
        self.seen.append((type(self).__name__, logits.copy()))
        return logits


class InvariantRows(Rows):
    IS_ARGMAX_INVARIANT = True


def test_a_processor_that_knows_the_best_token_must_stay(settings: dict[str, Any]) -> None:
    params = [
        SamplingParams(seed=seed, max_tokens=1, logprobs=5, extra_args={"flat": True})
        for seed in range(40)
    ]
    with LLM(**settings, logits_processors=[FlatTop], logprobs_mode="processed_logprobs") as llm:
        outputs = llm.generate([PROMPTS[0]] * 40, params, use_tqdm=False)
    chosen = {output.outputs[0].token_ids[0] for output in outputs}
    assert 3 <= len(chosen) <= 5
    [best] = outputs[0].outputs[0].logprobs or []
    assert sorted(one.logprob for one in best.values())[-1] == pytest.approx(-0.905, abs=0.01)


# ------------------------------------------------------------------ failures


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("processor", [TargetOfRequest, Fragile])
def test_only_the_request_that_a_processor_fails_for_ends(
    settings: dict[str, Any],
    plain: list[RequestOutput],
    processor: type[LogitsProcessor],
    fault: str,
) -> None:
    params = [one.clone() for one in PARAMS]
    params[2].extra_args = {"fails_at": 4, "fault": fault}
    params[3].extra_args = {"fails_at": 9, "fault": fault}
    with LLM(**settings, logits_processors=[processor, InvariantLedger]) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        again = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    for index, count in ((2, 4), (3, 9)):
        [ended] = outputs[index].outputs
        assert (ended.finish_reason, len(ended.token_ids)) == ("error", count)
        assert f"logits processor logits_processors:{processor.__name__} failed: " in (
            outputs[index].error or ""
        )
    others = [i for i in range(len(PROMPTS)) if i not in (2, 3)]
    assert [bits(outputs)[i] for i in others] == [bits(plain)[i] for i in others]
    assert bits(again) == bits(plain)


class CallsBack(AdapterLogitsProcessor):
    """Calls the engine from a step, or raises an error without a text."""

    llm: ClassVar[LLM]

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        what = (params.extra_args or {}).get("what")
        return None if what is None else lambda _ids, _logits: self.fail(what)

    def fail(self, what: str) -> None:
        calls = {
            "generate": lambda: self.llm.generate([[1]], use_tqdm=False),
            "abort": self.llm.llm_engine.abort_all,
            "close": self.llm.close,
        }
        if what in calls:
            calls[what]()
        raise WithoutTextError


class WithoutTextError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("what", "error"),
    [
        *((what, "must not call the engine") for what in ("generate", "abort", "close")),
        ("raise", "WithoutTextError"),
    ],
)
def test_a_processor_that_calls_its_engine(
    settings: dict[str, Any], plain: list[RequestOutput], what: str, error: str
) -> None:
    params = [one.clone() for one in PARAMS]
    params[3].extra_args = {"what": what}
    with LLM(**settings, logits_processors=[CallsBack]) as llm:
        CallsBack.llm = llm
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        del CallsBack.llm
    assert error in (outputs[3].error or "")
    others = [i for i in range(len(PROMPTS)) if i != 3]
    assert [bits(outputs)[i] for i in others] == [bits(plain)[i] for i in others]


@pytest.mark.parametrize("processor", [TargetOfRequest, Fragile])
def test_a_failure_when_a_request_comes_in(
    settings: dict[str, Any], plain: list[RequestOutput], processor: type[LogitsProcessor]
) -> None:
    params = [one.clone() for one in PARAMS]
    params[3].extra_args = {"fails_to_start": True}
    with LLM(**settings, logits_processors=[processor]) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    assert outputs[3].outputs[0].finish_reason == "error"
    assert "failed: LookupError: no such thing" in (outputs[3].error or "")
    others = [i for i in range(len(PROMPTS)) if i != 3]
    assert [bits(outputs)[i] for i in others] == [bits(plain)[i] for i in others]


def test_parameters_that_a_processor_refuses(settings: dict[str, Any]) -> None:
    class Strict(TargetToken):
        @classmethod
        def validate_params(cls, sampling_params: SamplingParams) -> None:
            assert (sampling_params.extra_args or {})["must"] == 1

    wrong = SamplingParams(extra_args={"target_token": "x"})
    for processor, message in (
        (TargetToken, r"^target_token value x <class 'str'> is not int\Z"),
        (Strict, r"Strict refuses the parameters: KeyError: 'must'"),
    ):
        with (
            LLM(**settings, logits_processors=[processor]) as llm,
            pytest.raises(RequestError, match=message),
        ):
            llm.generate([PROMPTS[0]], wrong, use_tqdm=False)


def test_a_processor_that_cannot_be_made(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="CannotBeMade cannot be created: OSError"):
        LLM(**settings, logits_processors=["logits_processors:CannotBeMade"])
    assert CannotBeMade.validate_params(SamplingParams()) is None  # type: ignore[func-returns-value]


def test_the_logits_of_a_step_count_as_memory(settings: dict[str, Any]) -> None:
    from quire.config.engine_args import EngineArgs
    from quire.planning.plan import plan_engine

    args = {**settings, "max_num_seqs": 8}
    without = plan_engine(EngineArgs(**args)).needs.workspace_bytes
    with_one = plan_engine(EngineArgs(**args, logits_processors=[Ledger])).needs.workspace_bytes
    assert with_one - without == 5 * 4 * 8 * 288


def test_the_example_of_the_documents(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[2] / "docs" / "logits_processors.md"
    [code] = re.findall(r"```python\n(# only_even\.py\n.*?)```", page.read_text(), re.DOTALL)
    (tmp_path / "only_even.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "only_even", raising=False)
    params = [
        SamplingParams(seed=1, max_tokens=20, ignore_eos=True, extra_args={"only_even": is_on})
        for is_on in (True, False)
    ]
    with LLM(**settings, logits_processors=["only_even:OnlyEven"]) as llm:
        even, free = llm.generate(PROMPTS[:1] * 2, params, use_tqdm=False)
    assert not any(token % 2 for token in even.outputs[0].token_ids)
    assert any(token % 2 for token in free.outputs[0].token_ids)
