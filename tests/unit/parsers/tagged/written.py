"""Texts that a grammar of calls allows, made at random from its parts, with the values in them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from typing import Any

_WORDS = [
    "",
    " ",
    "a b",
    '"',
    "\\",
    "\n",
    "{",
    "]",
    "<",
    "</",
    "日本😀",
    "null ",
    "-1",
    "'",
    "&lt;",
]


class Writer:
    """Writes a text of a part. `values` are those of the arguments, in order."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self.values: list[Any] = []
        self._named: dict[str, Mapping[str, Any]] = {}

    def text(self, part: Mapping[str, Any]) -> str:
        """One of the texts that the part allows."""
        kind = part["type"]
        if kind == "const_string":
            return str(part["value"])
        if kind == "sequence":
            return "".join(self.text(one) for one in part["elements"])
        if kind == "or":
            return self._choice(part["elements"])
        if kind == "optional":
            return self.text(part["content"]) if self._dice.random() < 0.7 else ""
        if kind in ("star", "plus"):
            count = self._dice.randrange(3) + (kind == "plus")
            return "".join(self.text(part["content"]) for _ in range(count))
        if kind == "repeat":
            least, most = part["min"], part["max"]
            count = self._dice.randint(least, min(least + 2, least + 2 if most is None else most))
            return "".join(self.text(part["content"]) for _ in range(count))
        if kind == "named":
            self._named[part["name"]] = part["content"]
            return self.text(part["content"])
        if kind == "reference":
            return self.text(self._named[part["name"]])
        if kind == "tag":
            return self._tag(part)
        if kind == "tags_with_separator":
            count = 1 if part["stop_after_first"] else 1 + self._dice.randrange(3)
            tags = [self._tag(self._dice.choice(part["tags"])) for _ in range(count)]
            return str(part["separator"]).join(tags)
        if kind == "members":
            return self._members(part)
        if kind == "regex":
            return re.sub(r"\\(.)", r"\1", part["pattern"])
        assert kind == "json_schema", kind
        schema = part["json_schema"]
        value = self._value(schema, {} if schema is True else schema.get("$defs", {}))
        self.values.append(value)
        return json.dumps(value, ensure_ascii=False)

    def _members(self, part: Mapping[str, Any]) -> str:
        optional = part["optional"]
        chosen = [
            one
            for i, one in enumerate(part["elements"])
            if i not in optional or self._dice.random() < 0.7
        ]
        if "more" in part:
            chosen += [part["more"]] * self._dice.randrange(3)
        separator, end = str(part["separator"]), str(part["end"])
        written = [self._before(one, [separator, end]) for one in chosen]
        return f"{part['begin']}{separator.join(written)}{end}" if written else ""

    def _tag(self, tag: Mapping[str, Any]) -> str:
        return f"{tag['begin']}{self._before(tag['content'], [tag['end']])}{tag['end']}"

    def _before(self, part: Mapping[str, Any], ends: list[str]) -> str:
        """A text of a part before one of these texts."""
        if part["type"] == "sequence":
            *others, last = part["elements"]
            return "".join(map(self.text, others)) + self._before(last, ends)
        if part["type"] != "any_text":
            return self.text(part)
        if part.get("forms"):
            word = f"key_{self._dice.randrange(10**6)}"
            if not part["forms"][0]["patterns"][0].startswith("[A-Z"):  # the name of an argument
                self.values.append(word)
            return word
        wrong = [re.compile(one) for one in part["excluded_patterns"]]
        words = [
            *_WORDS,
            *(end[: self._dice.randrange(len(end) + 1)] for end in filter(None, ends)),
        ]
        text = "".join(self._dice.choices(words, k=self._dice.randrange(6)))
        while any(one.search(text) for one in wrong) or any(
            end and (text + end).find(end) < len(text) for end in ends
        ):
            text = text[1:]
        self.values.append(text)
        return text

    def _choice(self, elements: list[Mapping[str, Any]]) -> str:
        chosen = self._dice.choice(elements)
        if all(one["type"] == "const_string" for one in elements):
            self.values.append(chosen["value"])
        return self.text(chosen)

    def _value(self, schema: Any, definitions: Mapping[str, Any]) -> Any:
        if schema is True:
            return {}
        if "$ref" in schema:
            return self._value(definitions[schema["$ref"].rsplit("/", 1)[-1]], definitions)
        if "enum" in schema:
            return self._dice.choice(schema["enum"])
        kind = schema.get("type", "object")
        if kind == "object":
            properties = schema.get("properties", {})
            return {key: self._value(of, definitions) for key, of in properties.items()}
        if kind == "array":
            return [
                self._value(schema["items"], definitions) for _ in range(self._dice.randrange(3))
            ]
        if kind == "string":
            words = [*_WORDS, "</parameter>", "</arg_value>", "<|call|>", "</invoke>"]
            return "".join(self._dice.choices(words, k=self._dice.randrange(4)))
        if kind == "boolean":
            return self._dice.random() < 0.5
        return self._dice.randrange(-100, 100) * (1 if kind == "integer" else 0.5)


def leaves(value: Any) -> list[Any]:
    """The scalars in values, in order; an empty container has none."""
    if isinstance(value, dict):
        return [leaf for one in value.values() for leaf in leaves(one)]
    if isinstance(value, list):
        return [leaf for one in value for leaf in leaves(one)]
    return [value]
