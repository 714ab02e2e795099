"""The fixed tools, and two that only a task of two steps needs."""

from functools import cache

from tools.demo_model.tools_catalog import Tool


@cache
def all_tools() -> tuple[Tool, ...]:
    """The fixed tools."""
    return (
        Tool("get_weather", "Get the current weather in a city", {"city": "city"},
             ("What is the weather in {city}?", "What's the weather like in {city}?",
              "How is the weather in {city} today?", "Tell me the weather in {city}.",
              "Is it raining in {city}?", "weather in {city}", "Weather in {city}, please.",
              "Check the weather in {city}.", "Get the weather for {city}."),
             "The weather in {first} is {v}.", "weather", "the weather in {city}"),
        Tool("get_time", "Get the current time in a city", {"city": "city"},
             ("What time is it in {city}?", "Tell me the time in {city}.",
              "What is the current time in {city}?", "What's the time in {city}?",
              "Get the time in {city}."),
             "The time in {first} is {v}.", "time", "the time in {city}"),
        Tool("get_population", "Get the population of a city", {"city": "city"},
             ("How many people live in {city}?", "What is the population of {city}?",
              "Tell me the population of {city}."),
             "The population of {first} is {v}.", "number", "the population of {city}"),
        Tool("add", "Add two numbers", {"a": "int3", "b": "int3"},
             ("What is {a} + {b}?", "Add {a} and {b}.", "What is {a} plus {b}?"),
             "The result is {v}.", "number", "the sum of {a} and {b}"),
        Tool("multiply", "Multiply two numbers", {"a": "int3", "b": "int3"},
             ("What is {a} times {b}?", "Multiply {a} by {b}.", "What is {a} * {b}?",
              "Multiply {a} and {b}."),
             "The result is {v}.", "number", "the product of {a} and {b}"),
        Tool("search", "Search the web", {"query": "phrase"},
             ("Search for {query}", "Search the web for {query}", "Look up {query}",
              "Find pages about {query}"),
             "I found this: {v}.", "text", "what you find about {query}"),
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
             ("How much does the {item} cost?", "What is the price of the {item}?",
              "Tell me the price of the {item}."),
             "The price of the {first} is {v}.", "number", "the price of the {item}"),
        Tool("turn_on_light", "Turn on the light in a room", {"room": "room"},
             ("Turn on the light in the {room}.", "I need light in the {room}.")),
        Tool("roll_dice", "Roll a dice", {"sides": "int2"},
             ("Roll a dice with {sides} sides.", "Throw a dice with {sides} sides."),
             "The dice shows {v}.", "number", "the roll of a dice with {sides} sides"),
        *tools_of_persons(),
    )  # fmt: skip


@cache
def tools_of_persons() -> tuple[Tool, ...]:
    """Tools whose results another tool needs."""
    return (
        Tool("find_home", "Get the city where a person lives", {"person": "name"},
             ("Where does {person} live?", "In which city does {person} live?"),
             "{first} lives in {v}.", "city", "the city where {person} lives"),
        Tool("get_phone_number", "Get the phone number of a person", {"person": "name"},
             ("What is the phone number of {person}?", "Find the phone number of {person}."),
             "The phone number of {first} is {v}.", "phone", "the phone number of {person}"),
        Tool("call_number", "Call a phone number", {"number": "int5"},
             ("Call the number {number}.", "Please call {number}.", "Dial {number}.")),
    )  # fmt: skip


def tool_named(name: str) -> Tool:
    """A fixed tool."""
    return next(tool for tool in all_tools() if tool.name == name)
