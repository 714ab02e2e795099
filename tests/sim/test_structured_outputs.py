"""Requests with grammars on real models: what they write is what was asked for, and the same bits
whatever runs beside them."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from grammar_jobs import Late

from quire.config.engine_args import EngineArgs
from quire.errors import RequestError
from quire.executor import UniProcExecutor
from quire.frontend.online.async_llm import AsyncLLM
from quire.llm import LLM
from quire.outputs import CompletionOutput, RequestOutput
from quire.params import SamplingParams
from quire.protocol import SchedulePlan
from quire.scheduler import Scheduler
from quire.scheduler.drafting.ngram import NgramProposer
from quire.scheduler.in_flight import PlanInFlight
from quire.scheduler.request import Request
from quire.structured import limits
from quire.structured import manager as manager_module
from quire.structured.manager import GrammarNews, StructuredOutputManager
from quire.structured.params import StructuredOutputsParams

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"type": "integer", "minimum": -5, "maximum": 500},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        "inner": {
            "type": "object",
            "properties": {"ok": {"type": "boolean"}},
            "required": ["ok"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "size", "tags"],
    "additionalProperties": False,
}
NO_SPACE = {"disable_any_whitespace": True}
SPECS: list[dict[str, Any]] = [
    {"json": SCHEMA, **NO_SPACE},
    {"regex": "[a-f]{2,6}-[0-9]{1,4}"},
    {"choice": ["apple", "apples", "pear", "a pear"]},
    {"grammar": 'start: sum\nsum: NUM | sum "+" NUM\nNUM: /[0-9]{1,3}/'},
    {"json": {"type": "array", "items": {"type": "integer"}, "maxItems": 4}, **NO_SPACE},
    {"json_object": True, **NO_SPACE},
]
TEMPERATURES = [0.0, 1.0, 2.0]
RANDOM = np.random.default_rng(5)
LENGTHS = (3, 17, 40, 9, 64, 75)
PROMPTS = [RANDOM.integers(0, 94, length).tolist() for length in LENGTHS]
"""Of whole characters: the text begins after the prompt's last one."""


def params_of(spec: dict[str, Any] | None, **changes: Any) -> SamplingParams:
    values: dict[str, Any] = {"seed": 11, "max_tokens": 60, "logprobs": 2, **changes}
    if spec is not None:
        values["structured_outputs"] = StructuredOutputsParams(**spec)
    return SamplingParams(**values)


CASES = [
    (prompt, params_of(spec, temperature=temperature))
    for temperature in TEMPERATURES
    for prompt, spec in zip(PROMPTS, SPECS, strict=True)
]


def check(spec: StructuredOutputsParams, text: str) -> None:
    """Raises unless the text is what was asked for."""
    if spec.json is not None:
        jsonschema.validate(json.loads(text), spec.json)
    elif spec.json_object:
        assert isinstance(json.loads(text), dict)
    elif spec.regex is not None:
        assert re.fullmatch(spec.regex, text)
    elif spec.choice is not None:
        assert text in spec.choice
    else:
        assert re.fullmatch(r"[0-9]{1,3}(\+[0-9]{1,3})*", text)


def check_all(outputs: list[RequestOutput]) -> int:
    """How many ended by themselves; the others were cut off."""
    num_ended = 0
    for output, (_, params) in zip(outputs, CASES, strict=True):
        [one] = output.outputs
        assert one.finish_reason in ("stop", "length")
        if one.finish_reason == "stop":
            assert params.structured_outputs is not None
            check(params.structured_outputs, one.text)
            num_ended += 1
    return num_ended


def bits(outputs: list[RequestOutput]) -> list[Any]:
    """Tokens and exact log-probabilities."""
    return [(one.token_ids, one.logprobs) for output in outputs for one in output.outputs]


@pytest.fixture(scope="module")
def settings(model_dir: Path, backend: str) -> dict[str, Any]:
    return {"model": str(model_dir), "backend": backend, "max_model_len": 192, "num_threads": 1}


@pytest.fixture(scope="module")
def alone(settings: dict[str, Any]) -> list[RequestOutput]:
    """One request at a time, and no prefix cache."""
    with LLM(**settings, max_num_seqs=1, enable_prefix_caching=False) as llm:
        return generate(llm)


def generate(llm: LLM) -> list[RequestOutput]:
    prompts = [prompt for prompt, _ in CASES]
    return llm.generate(prompts, [params for _, params in CASES], use_tqdm=False)


def test_what_ends_by_itself_is_what_was_asked_for(alone: list[RequestOutput]) -> None:
    assert check_all(alone) >= len(CASES) // 2


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_demo_model_too(temperature: float) -> None:
    prompts = ["Write: ", "A fruit: "]
    specs = [*SPECS, {"json": SCHEMA}]
    params = [params_of(spec, temperature=temperature, max_tokens=90) for spec in specs]
    with LLM("demo", num_threads=1) as llm:
        outputs = [
            one
            for prompt in prompts
            for one in llm.generate([prompt] * len(params), params, use_tqdm=False)
        ]
    num_ended = 0
    for output, one in zip(outputs, params * len(prompts), strict=True):
        if output.outputs[0].finish_reason == "stop":
            assert one.structured_outputs is not None
            check(one.structured_outputs, output.outputs[0].text)
            num_ended += 1
    assert num_ended >= len(outputs) // 2


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    "options",
    [
        {"max_num_seqs": 32, "num_threads": 2},
        {"max_num_batched_tokens": 7},
        {"max_num_seqs": 3},
        {"num_gpu_blocks_override": 12},
    ],
    ids=str,
)
def test_in_company(
    settings: dict[str, Any], alone: list[RequestOutput], options: dict[str, Any]
) -> None:
    """Also cut into chunks, preempted, and, the second time, from the prefix cache."""
    with LLM(**{**settings, **options}) as llm:
        first, second = generate(llm), generate(llm)
        llm.llm_engine.engine_core.scheduler.check_integrity()
    if "num_gpu_blocks_override" in options:
        assert any(one.metrics and one.metrics.num_preemptions for one in (*first, *second))
    assert bits(first) == bits(alone)
    assert bits(second) == bits(alone)


@pytest.mark.parametrize("depth", [2, 3])
def test_with_plans_in_flight(
    settings: dict[str, Any],
    alone: list[RequestOutput],
    depth: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(UniProcExecutor, "max_plans_in_flight", depth)
    with LLM(**settings, max_num_batched_tokens=24) as llm:
        assert bits(generate(llm)) == bits(alone)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Late:
    """Every mask takes some steps, and they come in any order."""
    jobs = Late(3)
    take_news = StructuredOutputManager.take_news

    def turn(self: StructuredOutputManager, timeout_s: float) -> list[GrammarNews]:
        jobs.turn()
        return take_news(self, min(timeout_s, 0.001))

    monkeypatch.setattr(manager_module, "GrammarThreads", lambda: jobs)
    monkeypatch.setattr(StructuredOutputManager, "take_news", turn)
    return jobs


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    "options", [{}, {"max_num_batched_tokens": 7}, {"num_gpu_blocks_override": 14}], ids=str
)
def test_masks_that_come_late(
    settings: dict[str, Any],
    alone: list[RequestOutput],
    one_by_one: list[Any],
    options: dict[str, Any],
    depth: int,
    late: Late,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same tokens, also of those that are preempted meanwhile, and of others beside them."""
    monkeypatch.setattr(UniProcExecutor, "max_plans_in_flight", depth)
    plain = params_of(None, temperature=1.0)
    with LLM(**{**settings, **options}) as llm:
        [wanted] = bits(llm.generate(PROMPTS[:1], plain, use_tqdm=False))
        beside, *outputs = llm.generate(
            [PROMPTS[0], *(prompt for prompt, _ in CASES)],
            [plain, *(params for _, params in CASES)],
            use_tqdm=False,
        )
        assert bits(outputs) == bits(alone)
        assert bits([beside]) == [wanted]
        assert ends(llm, logprobs=None) == one_by_one
        assert not llm.llm_engine.engine_core.structured_outputs.num_requests
    assert late.most_kept > 1


def test_a_request_without_a_grammar_among_those_with_some(settings: dict[str, Any]) -> None:
    plain = params_of(None, temperature=1.0)
    with LLM(**settings) as llm:
        wanted = llm.generate(PROMPTS[:1], plain, use_tqdm=False)
        mixed = llm.generate(
            [PROMPTS[0], *(prompt for prompt, _ in CASES)],
            [plain, *(params for _, params in CASES)],
            use_tqdm=False,
        )
    assert bits(mixed[:1]) == bits(wanted)


def test_several_outputs_of_one_prompt(settings: dict[str, Any]) -> None:
    """Each follows the grammar on its own."""
    params = params_of(SPECS[1], temperature=2.0, n=5)
    with LLM(**settings) as llm:
        [output] = llm.generate(PROMPTS[:1], params, use_tqdm=False)
    texts = [one.text for one in output.outputs]
    assert len(set(texts)) > 1
    for one in output.outputs:
        if one.finish_reason == "stop":
            check(StructuredOutputsParams(**SPECS[1]), one.text)


EXTRAS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "repetition_penalty": 1.3, "frequency_penalty": 0.7},
    {"temperature": 2.0, "stop": ["e", "a-"]},
    {"temperature": 1.0, "stop": ['":'], "include_stop_str_in_output": True},
    {"temperature": 2.0, "stop_token_ids": [65, 66, 67], "min_p": 0.01},
    {"temperature": 1.0, "max_tokens": 7, "presence_penalty": 1.0},
]


def ends(llm: LLM, **changes: Any) -> list[Any]:
    """What each grammar gives with each of the extras."""
    params = [params_of(spec, **{**extra, **changes}) for extra in EXTRAS for spec in SPECS]
    outputs = llm.generate(PROMPTS * len(EXTRAS), params, use_tqdm=False)
    llm.llm_engine.engine_core.scheduler.check_integrity()
    return [
        (one.token_ids, one.text, one.finish_reason, one.stop_reason)
        for output in outputs
        for one in output.outputs
    ]


@pytest.fixture(scope="module")
def one_by_one(settings: dict[str, Any]) -> list[Any]:
    """Without speculation a token is chosen even where there is no choice."""
    with LLM(**settings, speculation=False) as llm:
        return ends(llm, logprobs=0)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    "options",
    [{}, {"max_num_batched_tokens": 5, "max_num_seqs": 4}, {"num_gpu_blocks_override": 14}],
    ids=str,
)
def test_tokens_without_a_choice_are_not_computed_one_by_one(
    settings: dict[str, Any],
    one_by_one: list[Any],
    options: dict[str, Any],
    depth: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same tokens, texts and ends."""
    num_forced = 0
    add = PlanInFlight.add

    def noted(step: PlanInFlight, request: Request, count: int) -> None:
        nonlocal num_forced
        add(step, request, count)
        num_forced += request.num_drafts_in_flight

    monkeypatch.setattr(PlanInFlight, "add", noted)
    monkeypatch.setattr(NgramProposer, "propose", lambda *_: None)
    monkeypatch.setattr(UniProcExecutor, "max_plans_in_flight", depth)
    with LLM(**settings, **options) as llm:
        first, second = ends(llm, logprobs=None), ends(llm, logprobs=None)
    assert first == one_by_one
    assert second == one_by_one
    assert num_forced > 10 or "max_num_batched_tokens" in options


LONG_TEXTS = {"regex": "([a-f] and so on, as always; ){6}"}


def test_beside_others_few_such_tokens_are_computed_at_once(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all have the tokens that they have without others."""
    further: list[int] = []
    schedule = Scheduler.schedule

    def noted(scheduler: Scheduler) -> SchedulePlan:
        plan = schedule(scheduler)
        if not plan.started and any(name.startswith("plain") for name in plan.request_ids):
            further.append(sum(plan.num_scheduled_tokens) - len(plan.request_ids))
        return plan

    monkeypatch.setattr(Scheduler, "schedule", noted)
    plain = params_of(None, temperature=1.0, max_tokens=100, ignore_eos=True)
    forced = params_of(LONG_TEXTS, temperature=2.0, max_tokens=150, logprobs=None)
    with LLM(**settings) as llm:
        wanted = bits(llm.generate(PROMPTS[:2], plain, use_tqdm=False))
        asked = params_of(LONG_TEXTS, temperature=2.0, max_tokens=150, logprobs=0)
        texts = [token_ids for token_ids, _ in bits(llm.generate(PROMPTS[:4], asked))]
        engine, last = llm.llm_engine, dict[str, RequestOutput]()
        for kind, params, count in (("forced", forced, 4), ("plain", plain, 2)):
            for number in range(count):
                name = f"{kind} {number}"
                engine.add_request(name, {"prompt_token_ids": PROMPTS[number]}, params)
        while engine.has_unfinished_requests():
            last |= {output.request_id: output for output in engine.step()}
    assert bits([last["plain 0"], last["plain 1"]]) == wanted
    assert [last[f"forced {number}"].outputs[0].token_ids for number in range(4)] == texts
    assert len(further) > 50
    assert max(further) < 20, "92 if nobody else waits"


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "allowed_token_ids": {"allowed_token_ids": [0]},
    "bad_words": {"bad_words": ["a", "p"]},
}


@pytest.mark.parametrize("changes", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_parameters_that_leave_no_token_are_an_error_of_their_request(
    settings: dict[str, Any], alone: list[RequestOutput], changes: dict[str, Any]
) -> None:
    wrong = params_of(SPECS[2], temperature=1.0, **changes)
    with LLM(**settings) as llm:
        first, *others = llm.generate(
            [PROMPTS[0], *(prompt for prompt, _ in CASES)],
            [wrong, *(params for _, params in CASES)],
            use_tqdm=False,
        )
    assert first.outputs[0].finish_reason == "error"
    assert bits(others) == bits(alone)


def test_a_grammar_that_takes_too_much_ends_its_request_alone(
    settings: dict[str, Any], alone: list[RequestOutput], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_ITEMS_IN_ROW", 100)
    hostile = params_of({"json": {"enum": [{"a": number} for number in range(200)]}})
    with LLM(**settings) as llm:
        first, *others = llm.generate(
            [PROMPTS[0], *(prompt for prompt, _ in CASES)],
            [hostile, *(params for _, params in CASES)],
            use_tqdm=False,
        )
    assert first.outputs[0].finish_reason == "error"
    assert "takes too much" in str(first.error)
    assert bits(others) == bits(alone)


def test_the_text_ends_before_min_tokens_where_nothing_else_is_allowed(
    settings: dict[str, Any],
) -> None:
    with LLM(**settings) as llm:
        eos = set(llm.llm_engine.model_config.eos_token_ids)
        params = params_of({"regex": "(yes|no)!*"}, min_tokens=8, max_tokens=30, temperature=1.0)
        ended, longer = (
            llm.generate(PROMPTS[0], given, use_tqdm=False)[0].outputs[0]
            for given in (params_of({"choice": ["yes", "no"]}, min_tokens=20), params)
        )
    assert ended.text in ("yes", "no")
    assert ended.finish_reason == "stop"
    assert eos.issuperset(ended.token_ids[len(ended.text) :])
    assert len(longer.token_ids) >= 8


def test_an_ignored_end_comes_after_the_text_alone(settings: dict[str, Any]) -> None:
    with LLM(**settings) as llm:
        eos = set(llm.llm_engine.model_config.eos_token_ids)
        params = params_of({"choice": ["yes", "no"]}, ignore_eos=True, max_tokens=20)
        [found] = llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs
    assert found.text in ("yes", "no")
    assert (found.finish_reason, len(found.token_ids)) == ("length", 20)
    assert eos.issuperset(found.token_ids[len("yes") :])


def test_a_wrong_grammar_is_refused(settings: dict[str, Any], alone: list[RequestOutput]) -> None:
    [prompt, params] = CASES[0]
    with LLM(**settings) as llm:
        with pytest.raises(RequestError, match="unclosed group"):
            llm.generate(prompt, params_of({"regex": "(("}), use_tqdm=False)
        assert bits(llm.generate([prompt], params, use_tqdm=False)) == bits(alone[:1])


@pytest.mark.sweep(2)
@pytest.mark.parametrize("mode", ["thread", "process"])
def test_in_each_host(settings: dict[str, Any], alone: list[RequestOutput], mode: Any) -> None:
    async def last(engine: AsyncLLM, index: int) -> CompletionOutput:
        prompt, params = CASES[index]
        async for output in engine.generate({"prompt_token_ids": prompt}, params, str(index)):
            found = output.outputs[0]
        return found

    async def scenario() -> list[CompletionOutput]:
        engine = AsyncLLM.from_engine_args(EngineArgs(**settings), engine_mode=mode)
        try:
            return await asyncio.gather(*(last(engine, index) for index in range(len(CASES))))
        finally:
            engine.shutdown()

    found = asyncio.run(scenario())
    assert [(one.token_ids, one.logprobs) for one in found] == bits(alone)
