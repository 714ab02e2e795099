"""Structured output after reasoning, on real models: the reasoning is free, and what follows it is
what was asked for, with the same bits whatever runs beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.errors import RequestError
from quire.executor import UniProcExecutor
from quire.llm import LLM
from quire.outputs import RequestOutput
from quire.params import SamplingParams
from quire.reasoning.marks import ReasoningMarks
from quire.structured.params import StructuredOutputsParams

BEGIN, END = "<think>", "</think>"
CHOICE = ["apple", "pear"]
SPECS: list[dict[str, Any]] = [
    {"choice": CHOICE},
    {
        "json": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "disable_any_whitespace": True,
    },
]
PROMPTS = ["Fruit:", "Fruit:" + BEGIN, "Fruit:" + BEGIN + END, "A,b,c," * 9 + BEGIN + "so,"]
CASES = [
    (prompt, spec, temperature)
    for prompt in PROMPTS
    for spec in SPECS
    for temperature in (0.0, 1.0, 1.5)
]


def params_of(spec: dict[str, Any], temperature: float, **changes: Any) -> SamplingParams:
    values: dict[str, Any] = {"seed": 3, "max_tokens": 60, "thinking_token_budget": 9, **changes}
    return SamplingParams(
        temperature=temperature, structured_outputs=StructuredOutputsParams(**spec), **values
    )


def generate(llm: LLM, **changes: Any) -> list[RequestOutput]:
    params = [params_of(spec, temperature, **changes) for _, spec, temperature in CASES]
    outputs = llm.generate([prompt for prompt, _, _ in CASES], params, use_tqdm=False)
    llm.llm_engine.engine_core.scheduler.check_integrity()
    return outputs


def tokens(outputs: list[RequestOutput]) -> list[Any]:
    return [(one.token_ids, one.finish_reason) for output in outputs for one in output.outputs]


@pytest.fixture(scope="module")
def settings(model_dir: Path, backend: str) -> dict[str, Any]:
    return {
        "model": str(model_dir), "backend": backend, "max_model_len": 192, "num_threads": 1,
        "reasoning_config": {"reasoning_start_str": BEGIN, "reasoning_end_str": END},
    }  # fmt: skip


@pytest.fixture(scope="module")
def alone(settings: dict[str, Any]) -> list[RequestOutput]:
    with LLM(**settings, max_num_seqs=1, enable_prefix_caching=False) as llm:
        return generate(llm, logprobs=0)


def test_what_follows_the_reasoning_is_what_was_asked_for(alone: list[RequestOutput]) -> None:
    num_free = 0
    for output, (prompt, spec, _) in zip(alone, CASES, strict=True):
        [one] = output.outputs
        before, end, answer = f"{prompt}{one.text}".rpartition(END)
        if not end:
            answer = one.text
        else:
            num_free += len(before) > len(prompt)
        if one.finish_reason == "stop":
            assert answer in CHOICE if "choice" in spec else isinstance(json.loads(answer), list)
    assert num_free >= len(CASES) // 2
    assert sum(output.outputs[0].finish_reason == "stop" for output in alone) > len(CASES) // 2


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    "options",
    [{"max_num_seqs": 64}, {"max_num_batched_tokens": 7}, {"num_gpu_blocks_override": 14}],
    ids=str,
)
def test_in_company(
    settings: dict[str, Any],
    alone: list[RequestOutput],
    options: dict[str, Any],
    depth: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also with tokens that are not computed one by one."""
    monkeypatch.setattr(UniProcExecutor, "max_plans_in_flight", depth)
    with LLM(**{**settings, **options}) as llm:
        assert tokens(generate(llm, logprobs=0)) == tokens(alone)
        assert tokens(generate(llm)) == tokens(alone)


def test_a_grammar_of_the_whole_reply(settings: dict[str, Any]) -> None:
    """A budget ends the reasoning where the grammar can: behind a whole character."""
    tag = {
        "type": "structural_tag",
        "format": {
            "type": "sequence",
            "elements": [
                {
                    "type": "triggered_tags",
                    "triggers": [END],
                    "tags": [{"type": "const_string", "value": END}],
                    "at_least_one": True,
                    "stop_after_first": True,
                },
                {"type": "grammar", "grammar": 'start: "apple" | "pear"'},
            ],
        },
    }
    params = []
    for seed in range(12):
        one = params_of({"structural_tag": json.dumps(tag)}, 1.0, seed=seed)
        one.mark_reasoning(ReasoningMarks(BEGIN, END, is_open=True, is_in_grammar=True))
        params.append(one)
    with LLM(**settings) as llm:
        outputs = llm.generate(["Fruit:" + BEGIN] * len(params), params, use_tqdm=False)
        again = llm.generate(["Fruit:" + BEGIN], params[5], use_tqdm=False)
    for output in outputs:
        [one] = output.outputs
        reasoning, _, answer = one.text.partition(END)
        assert one.finish_reason == "stop"
        assert answer in CHOICE
        assert len(reasoning.encode()) <= 9 + 3
    assert tokens(again) == tokens(outputs[5:6])


def test_reasoning_under_the_grammar(settings: dict[str, Any]) -> None:
    config = {"enable_in_reasoning": True}
    with LLM(**settings, structured_outputs_config=config) as llm:
        params = params_of(SPECS[0], 1.0, thinking_token_budget=None)
        [output] = llm.generate(["Fruit:" + BEGIN], params, use_tqdm=False)
        assert output.outputs[0].text in CHOICE
        with pytest.raises(RequestError, match="enable_in_reasoning"):
            llm.generate(["Fruit:"], params_of(SPECS[0], 1.0), use_tqdm=False)
