"""Why what Quire reads in a case is not what vLLM's parser said, in a few words."""

from __future__ import annotations

import json
from typing import Any

Case = dict[str, Any]
BEHIND = "text after calls is content"
STAYS = "what begins as a call stays one: cut short, or of a tool that is not offered"
NO_CALL = "text that is not a call in the family's form is content"
VALUES = "arguments are written by the tool's schema, else as the model wrote them"
NAMES = "names are those that the model wrote"
SPLIT = "a text is split in another place"
MARKS = "marks that begin nothing are text, or the other way round"


def reason(case: Case, read: Case) -> str:
    """The first that fits."""
    said_calls, calls = case["calls"], read["calls"]
    said_names, names = [name for name, _ in said_calls], [name for name, _ in calls]
    if len(calls) > len(said_calls):
        return STAYS
    if len(calls) < len(said_calls):
        return NO_CALL
    if names != said_names:
        return NAMES
    if _values(calls) != _values(said_calls):
        return STAYS if any(not _is_json(text) for _, text in calls) else VALUES
    said, content = case["content"].strip(), read["content"].strip()
    if calls and case["reasoning"].strip() == read["reasoning"].strip() and said in content:
        return BEHIND
    both = case["reasoning"] + case["content"], read["reasoning"] + read["content"]
    return SPLIT if _letters(both[0]) == _letters(both[1]) else MARKS


def _letters(text: str) -> str:
    return "".join(sorted(text.replace(" ", "").replace("\n", "")))


def _values(calls: list[list[str]]) -> list[Any]:
    return [json.loads(text) if _is_json(text) else text for _, text in calls]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    return True
