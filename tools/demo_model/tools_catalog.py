"""The tools that generated chats offer: their schemas, how they are asked for, what they reply."""

# ruff: noqa: SIM905  (a word list reads better as one string)

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tools.demo_model.facts import CITIES
from tools.demo_model.words import NOUNS, invented_word, some_name, some_word

# Names under which the same parameter may appear, so that the schema has to be read.
_SYNONYMS = {
    "city": ("city", "location", "place", "town"), "query": ("query", "q", "text", "topic"),
    "minutes": ("minutes", "duration", "time"), "to": ("to", "recipient", "name"),
    "message": ("message", "text", "body"), "text": ("text", "content", "note"),
    "title": ("title", "name", "song"), "item": ("item", "product", "name"),
    "a": ("a", "x", "first"), "b": ("b", "y", "second"), "room": ("room", "place"),
    "sides": ("sides", "max"), "value": ("value", "input", "item", "name", "id"),
    "person": ("person", "name", "who"), "number": ("number", "phone", "value"),
}  # fmt: skip
_ROOMS = ("kitchen", "bedroom", "garden", "hall", "office")
_VERBS = "get find open check start read load show lookup fetch delete update".split()
# A parameter that a request says nothing about, and that a call leaves out.
_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("unit", {"type": "string", "enum": ["celsius", "fahrenheit"]}),
    ("language", {"type": "string", "description": "The language of the answer"}),
    ("limit", {"type": "integer"}), ("verbose", {"type": "boolean"}),
)  # fmt: skip


@dataclass(frozen=True)
class Tool:
    """One function: parameters by kind of value, requests that use it, its reply in words.

    `result_name` names the result in a request for more than one step; a tool without a `reply`
    has no result.
    """

    name: str
    description: str
    parameters: dict[str, str]
    requests: tuple[str, ...]
    reply: str = ""
    reply_kind: str = "text"
    result_name: str = ""
    names: dict[str, str] = field(default_factory=dict)

    def with_parameter_names(self, rng: Random) -> "Tool":
        """The same tool with parameters renamed to synonyms, all different."""
        names: dict[str, str] = {}
        for key in self.parameters:
            free = [one for one in _SYNONYMS.get(key, (key,)) if one not in names.values()]
            names[key] = free[0] if rng.random() < 0.5 else rng.choice(free)
        return replace(self, names=names)

    def schema(self, rng: Random) -> dict[str, Any]:
        """The JSON schema that a client sends; optional parts are sometimes left out."""
        properties: dict[str, Any] = {}
        for key, kind in self.parameters.items():
            about = {"type": "integer" if kind.startswith("int") else "string"}
            if rng.random() < 0.25:
                about["description"] = f"The {key}"
            properties[self.names.get(key, key)] = about
        parameters: dict[str, Any] = {"type": "object", "properties": properties}
        if properties and rng.random() < 0.7:
            parameters["required"] = list(properties)
            if rng.random() < 0.15:
                properties.update([rng.choice(_OPTIONS)])
        if rng.random() < 0.3:
            parameters["additionalProperties"] = False
        parameters = _as_generated(parameters, rng)
        function: dict[str, Any] = {"name": self.name}
        if rng.random() < 0.8:
            function["description"] = self.description
        function["parameters"] = parameters
        return {"type": "function", "function": function}

    def values(self, rng: Random) -> dict[str, Any]:
        """A value of each parameter, under the tool's own names."""
        return {key: some_value(kind, rng) for key, kind in self.parameters.items()}

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the right call."""
        return {self.names.get(key, key): value for key, value in values.items()}

    def request(self, rng: Random) -> tuple[str, dict[str, Any]]:
        """A user's text that asks for the tool, and the arguments of the right call."""
        values = self.values(rng)
        return rng.choice(self.requests).format(**values), self.arguments(values)

    def says(self, values: Mapping[str, Any], result: str) -> str:
        """The result in a sentence."""
        if not self.reply:
            return "Done."
        return self.reply.format(v=result, first=next(iter(values.values()), ""))


def _as_generated(parameters: dict[str, Any], rng: Random) -> dict[str, Any]:
    """Change a schema to the form in which clients make it from functions: titles, keys in another
    order."""
    if rng.random() < 0.25:
        for key, about in parameters["properties"].items():
            title = {"title": key.replace("_", " ").title()}
            parameters["properties"][key] = about | title if rng.random() < 0.5 else title | about
    if rng.random() < 0.25:
        parameters = {key: parameters[key] for key in sorted(parameters)}
    return parameters


def some_value(kind: str, rng: Random) -> Any:
    """A value of a kind of parameter."""
    match kind:
        case "city":
            return rng.choice(CITIES).removesuffix(".")
        case "name":
            return some_name(rng)
        case "room":
            return rng.choice(_ROOMS)
        case "phrase":
            return " ".join(some_word(rng) for _ in range(rng.randint(1, 3)))
        case "int5":
            return rng.randint(10_000, 99_999)
        case "int3":
            return rng.randint(1, 999)
        case "int2":
            return rng.randint(1, 90)
        case _:
            return some_word(rng)


def invented_tool(rng: Random) -> Tool:
    """A tool of a name not seen before, asked for by name."""
    noun = invented_word(rng) if rng.random() < 0.3 else rng.choice(NOUNS)
    verb, kind = rng.choice(_VERBS), rng.choice(("word", "name", "int3", "city"))
    name = f"{verb}_{noun}"
    requests = (
        f"{verb.capitalize()} the {noun} of {{value}}.", f"{verb.capitalize()} {noun} {{value}}",
        f"Use {name} with {{value}}.", f"Call {name} for {{value}}.",
        f"Please {verb} the {noun} for {{value}}.",
    )  # fmt: skip
    about = f"{verb.capitalize()} the {noun}"
    return Tool(
        name, about, {"value": kind}, requests, "The result is {v}.",
        rng.choice(("text", "number")), f"the {noun} of {{value}}",
    )  # fmt: skip
