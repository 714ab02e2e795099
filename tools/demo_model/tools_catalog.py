"""The tools that generated chats offer: their schemas, how they are asked for, what they reply."""

# ruff: noqa: SIM905  (a word list reads better as one string)

from dataclasses import dataclass, field, replace
from functools import cache
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
}  # fmt: skip
_ROOMS = ("kitchen", "bedroom", "garden", "hall", "office")
_VERBS = "get find open check start read load show lookup fetch delete update".split()


@dataclass(frozen=True)
class Tool:
    """One function: parameters by kind of value, requests that use it, its reply in words."""

    name: str
    description: str
    parameters: dict[str, str]
    requests: tuple[str, ...]
    reply: str = ""
    reply_kind: str = "text"
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
        function: dict[str, Any] = {"name": self.name}
        if rng.random() < 0.8:
            function["description"] = self.description
        function["parameters"] = parameters
        return {"type": "function", "function": function}

    def request(self, rng: Random) -> tuple[str, dict[str, Any]]:
        """What a user says to have the tool used, and the arguments of the right call."""
        values = {key: _value(kind, rng) for key, kind in self.parameters.items()}
        text = rng.choice(self.requests).format(**values)
        return text, {self.names.get(key, key): value for key, value in values.items()}


def _value(kind: str, rng: Random) -> Any:
    match kind:
        case "city":
            return rng.choice(CITIES).removesuffix(".")
        case "name":
            return some_name(rng)
        case "room":
            return rng.choice(_ROOMS)
        case "phrase":
            return " ".join(some_word(rng) for _ in range(rng.randint(1, 3)))
        case "int3":
            return rng.randint(1, 999)
        case "int2":
            return rng.randint(1, 90)
        case _:
            return some_word(rng)


@cache
def all_tools() -> tuple[Tool, ...]:
    """The fixed tools."""
    return (
        Tool("get_weather", "Get the current weather in a city", {"city": "city"},
             ("What is the weather in {city}?", "What's the weather like in {city}?",
              "How is the weather in {city} today?", "Tell me the weather in {city}.",
              "Is it raining in {city}?", "weather in {city}"),
             "The weather in {first} is {v}.", "weather"),
        Tool("get_time", "Get the current time in a city", {"city": "city"},
             ("What time is it in {city}?", "Tell me the time in {city}.",
              "What is the current time in {city}?"), "The time in {first} is {v}.", "time"),
        Tool("get_population", "Get the population of a city", {"city": "city"},
             ("How many people live in {city}?", "What is the population of {city}?"),
             "The population of {first} is {v}.", "number"),
        Tool("add", "Add two numbers", {"a": "int3", "b": "int3"},
             ("What is {a} + {b}?", "Add {a} and {b}.", "What is {a} plus {b}?"),
             "The result is {v}.", "number"),
        Tool("multiply", "Multiply two numbers", {"a": "int3", "b": "int3"},
             ("What is {a} times {b}?", "Multiply {a} by {b}.", "What is {a} * {b}?"),
             "The result is {v}.", "number"),
        Tool("search", "Search the web", {"query": "phrase"},
             ("Search for {query}", "Search the web for {query}", "Look up {query}",
              "Find pages about {query}"), "I found this: {v}.", "text"),
        Tool("set_timer", "Set a timer", {"minutes": "int2"},
             ("Set a timer for {minutes} minutes.", "Wake me in {minutes} minutes.",
              "Start a timer of {minutes} minutes.")),
        Tool("send_message", "Send a message to a person", {"to": "name", "message": "phrase"},
             ("Send {to} the message: {message}", "Write to {to}: {message}",
              "Tell {to} this: {message}")),
        Tool("add_note", "Save a note", {"text": "phrase"},
             ("Make a note: {text}", "Save this note: {text}", "Note down: {text}")),
        Tool("play_song", "Play a song", {"title": "phrase"},
             ("Play the song {title}", "Please play {title}", "I want to hear {title}")),
        Tool("get_price", "Get the price of a product", {"item": "word"},
             ("How much does the {item} cost?", "What is the price of the {item}?"),
             "The price of the {first} is {v}.", "number"),
        Tool("turn_on_light", "Turn on the light in a room", {"room": "room"},
             ("Turn on the light in the {room}.", "I need light in the {room}.")),
        Tool("roll_dice", "Roll a dice", {"sides": "int2"},
             ("Roll a dice with {sides} sides.", "Throw a dice with {sides} sides."),
             "The dice shows {v}.", "number"),
    )  # fmt: skip


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
    return Tool(name, about, {"value": kind}, requests)
