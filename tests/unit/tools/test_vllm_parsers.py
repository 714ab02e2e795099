"""Recorded cases of vLLM's parsers beside what Quire's formats read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.vllm_parsers.compare import compare

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def case(**changes: Any) -> dict[str, Any]:
    made = {
        "test": "tests/tool_parsers/test_x.py::test", "names": ["hermes", "qwen3_json"],
        "method": "extract_tool_calls", "text": CALL, "tools": {}, "reasoning": "", "content": "",
        "calls": [["f", '{"a":1}']],
    }  # fmt: skip
    return {**made, **changes}


def test_cases_agree_or_differ_by_family(tmp_path: Path) -> None:
    cases = [
        case(),
        case(test="tests/tool_parsers/test_x.py::again"),
        case(text=f"Well.{CALL}", content="Well.\n"),
        case(calls=[["f", '{"a": 2}']]),
        case(names=["qwen3"], method="extract_reasoning", text="a</think>b", calls=[],
             reasoning="a", content="b"),
        case(test="tests/parser/engine/test_qwen3.py::test", names=[], method="parse",
             text="a</think>b", calls=[], reasoning="a", content="b"),
        case(names=[]),
    ]  # fmt: skip
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in cases))
    found = compare(path)
    counts = {name: (one.agree, len(one.differ)) for name, one in found.items()}
    assert counts == {"hermes": (2, 1), "qwen3": (1, 0), "qwen3/qwen3_coder": (1, 0)}
