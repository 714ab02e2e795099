"""Arguments that a grammar allows are read back, and are valid by any schema."""

from __future__ import annotations

import json
import random

import jsonschema
import pytest
from tests.unit.parsers.tagged.test_grammars import NAMES
from tests.unit.parsers.tagged.walks import ends_of, random_arguments, random_text
from tests.unit.structured.texts import checked_grammar

from quire.errors import GrammarError
from quire.parsers.parser import parse_whole
from quire.parsers.registry import TOOL_FORMATS, reply_format

JSON = ("inkling", "openai", "plamo3")
WORDS = [
    "null", "true", "12", "120", "none", "[1]", '{"x":1}', "a b", "2024-02-29", "1.2.3.4", "abc",
    '"a"',
]  # fmt: skip


@pytest.mark.sweep(12)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("name", [name for name in NAMES if name not in JSON])
def test_random_arguments_are_valid(name: str, seed: int) -> None:
    dice = random.Random(f"{name} {seed}")
    schema = random_arguments(dice)
    format = TOOL_FORMATS[name]()
    try:
        part = format.grammar({"f": schema}, is_parallel=False)
    except GrammarError:
        with pytest.raises(GrammarError, match=r"no text matches|[Uu]nsatisfiable"):
            checked_grammar(json=schema)
        return
    grammar = checked_grammar(structural_tag=json.dumps({"type": "structural_tag", "format": part}))
    validator = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    ends = sorted({*ends_of(part), '"', "}", "]", '"}', '"]', "1", "a", "5", "/", ","} - {""})
    words = [*WORDS] if name == "minimax_m3" else [*WORDS, *format.literal_texts()]
    texts = [random_text(grammar, dice, words, ends) for _ in range(3)]
    assert any(texts)
    for text in filter(None, texts):
        message = parse_whole(reply_format(None, format), text, {"f": schema})
        (call,) = message.tool_calls
        assert (call.is_complete, message.content) == (True, ""), text
        arguments = json.loads(call.arguments)
        assert validator.is_valid(arguments), (text, schema, arguments)
