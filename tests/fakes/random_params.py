"""Random sampling parameters, with grammars, calls of tools and budgets of reasoning, for models of
`tiny_checkpoint`."""

from __future__ import annotations

import random
from typing import Any

from quire.params import SamplingParams
from quire.parsers.call_rules import CallRules, OfferedTool
from quire.parsers.constraint import reply_constraint
from quire.parsers.format import ReplyFormat
from quire.parsers.registry import TOOL_FORMATS
from quire.structured.params import StructuredOutputsParams

GRAMMARS: list[dict[str, Any]] = [
    {"regex": "[a-f]{2,6}-[0-9]{1,4}(, and so on){0,3}"},
    {"choice": ["apple", "apples", "pear", "a pear"]},
    {"json": {"type": "object", "properties": {"name": {"enum": ["red", "green and blue"]},
                                               "ok": {"type": "boolean"}},
              "required": ["name", "ok"], "additionalProperties": False}},
]  # fmt: skip
SCHEMAS: dict[str, Any] = {
    "add": {"type": "object", "properties": {"a": {"type": "integer"}, "unit": {"enum": ["km"]}},
            "required": ["a", "unit"], "additionalProperties": False},
    "look-up": {"type": "object", "properties": {"word": {"type": "string", "maxLength": 4}},
                "required": ["word"], "additionalProperties": False},
}  # fmt: skip
TOOLS = [OfferedTool(name, schema) for name, schema in SCHEMAS.items()]
BEGIN, END = "<think>", "</think>"
REASONING = {"reasoning_parser": "qwen3", "reasoning_end_str": f"Enough.{END}"}


def called(chance: random.Random) -> StructuredOutputsParams | None:
    """The grammar of a reply that must call a tool, any or one by name."""
    name = chance.choice(["hermes", "mistral", "llama3_json"])
    only = chance.choice([None, ("add",)])
    rules = CallRules(TOOLS, "required", only, is_parallel=only is None)
    return reply_constraint(ReplyFormat(None, TOOL_FORMATS[name]()), rules, lambda _: None)


def params_of(chance: random.Random, number: int) -> SamplingParams:
    """Any of the parameters, each with its own chance."""
    temperature = chance.choice([0, 0, 0.3, 1.0, 2.0])
    own: dict[str, Any] = {
        "temperature": temperature,
        "seed": number,
        "top_p": chance.choice([1.0, 0.9]),
        "top_k": chance.choice([0, 0, 1, 5]),
        "min_p": chance.choice([0.0, 0.05]),
        "repetition_penalty": chance.choice([1.0, 1.0, 1.3]),
        "presence_penalty": chance.choice([0.0, 0.0, 0.5]),
        "frequency_penalty": chance.choice([0.0, 0.0, 0.5]),
        "max_tokens": chance.randint(1, 40),
        "logprobs": chance.choice([None, 0, 3]),
        "prompt_logprobs": chance.choice([None, None, None, 1]),
        "logit_bias": chance.choice([None, None, {7: 4.0}]),
        "n": chance.choice([1, 1, 2]) if temperature else 1,
        "ignore_eos": chance.random() < 0.8,
        "thinking_token_budget": chance.choice([None, None, 0, 1, 5, 20]),
    }
    if chance.random() < 0.1:
        return SamplingParams(**own, structured_outputs=called(chance))
    if chance.random() < 0.25:
        own["structured_outputs"] = StructuredOutputsParams(**chance.choice(GRAMMARS))
        return SamplingParams(**own)
    if chance.random() < 0.15:
        kept = {name: own[name] for name in ("temperature", "seed", "max_tokens", "logprobs")}
        return SamplingParams(**kept, trace_decode_token_ids=[5, 6, 7, 8] * 3)
    return SamplingParams(
        **own,
        min_tokens=chance.choice([0, 0, min(6, own["max_tokens"])]),
        stop=chance.choice([None, None, ["a", "ex"]]),
        stop_token_ids=[*range(chance.choice([0, 0, 20]))],
        bad_words=chance.choice([None, None, ["ab", "c"]]),
        allowed_token_ids=chance.choice([None, None, None, [*range(40, 90)]]),
    )
