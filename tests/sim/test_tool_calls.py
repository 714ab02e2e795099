"""Calls of tools from a real engine with a random model: those that end name offered tools, and
their arguments validate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.fakes.random_replies import tokenizer_of
from tiny_checkpoint import write_tiny_checkpoint

from quire.llm import LLM
from quire.params import SamplingParams
from quire.parsers.call_rules import CallRules, OfferedTool
from quire.parsers.constraint import reply_constraint
from quire.parsers.format import ReplyFormat
from quire.parsers.kept_tokens import kept_token_ids
from quire.parsers.parser import parse_whole
from quire.parsers.registry import TOOL_FORMATS
from quire.structured.params import StructuredOutputsConfig
from quire.structured.trial import GrammarTrial
from quire.tokenizer import Tokenizer

SCHEMAS: dict[str, Any] = {
    "add": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "unit": {"enum": ["km", "mile"]}},
        "required": ["a", "unit"],
        "additionalProperties": False,
    },
    "look-up": {
        "type": "object",
        "properties": {"word": {"type": "string", "maxLength": 4}, "exact": {"type": "boolean"}},
        "required": ["word"],
        "additionalProperties": False,
    },
}
TOOLS = [OfferedTool(name, schema) for name, schema in SCHEMAS.items()]
MARKS = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "mistral": ("[TOOL_CALLS]", "[ARGS]"),
    "qwen3_coder": ("<tool_call>", "</tool_call>"),
    "llama3_json": ("<|python_tag|>",),
}


def written_model(directory: Path, name: str) -> Path:
    """A random model whose tokenizer has the marks of a format."""
    built = tokenizer_of(MARKS[name], ())
    size, end = built.max_token_id + 1, built.eos_token_id
    model = write_tiny_checkpoint(directory / "tiny", vocab_size=size, eos_token_id=end)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    built.backend.save(str(model / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": built.roles["eos_token"]}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    return model


def params_of(model: Path, format: ReplyFormat, choice: Any, **fields: Any) -> SamplingParams:
    tokenizer = Tokenizer.from_directory(model)
    trial = GrammarTrial(
        StructuredOutputsConfig(), tokenizer.max_token_id + 1, lambda: tokenizer.added_texts
    )
    spec = reply_constraint(format, CallRules(TOOLS, choice), trial.checked)
    one = SamplingParams(structured_outputs=spec, **{"max_tokens": 300, **fields})
    one.keep_tokens(kept_token_ids(format, tokenizer, has_tools=True))
    return one


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", MARKS)
def test_calls_of_a_random_model(name: str, tmp_path: Path, backend: str) -> None:
    model, format = written_model(tmp_path, name), ReplyFormat(None, TOOL_FORMATS[name]())
    params = [
        (choice, params_of(model, format, choice, seed=seed))
        for choice in ("required", "auto")
        for seed in range(6)
    ]
    with LLM(str(model), backend=backend, max_model_len=400, num_threads=1) as llm:
        outputs = llm.generate(["Hi"] * len(params), [one for _, one in params], use_tqdm=False)
    num_calls = 0
    for (choice, _), output in zip(params, outputs, strict=True):
        [done] = output.outputs
        if done.finish_reason != "stop":
            continue
        message = parse_whole(format, done.text, SCHEMAS)
        assert message.tool_calls or choice == "auto", done.text
        for call in message.tool_calls:
            assert call.is_complete
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
            num_calls += 1
    assert num_calls
