"""What all agents have: the question, two tools, and the log of their calls."""

from __future__ import annotations

import json
import os

BASE_URL = os.environ["BASE_URL"]
MODEL = "demo"
QUESTION = os.environ["QUESTION"]
CALLS: list[list[str]] = []


def find_home(person: str) -> str:
    """Get the city where a person lives"""
    CALLS.append(["find_home", person])
    return str(json.loads(os.environ["HOMES"])[person])


def get_weather(city: str) -> str:
    """Get the current weather in a city"""
    CALLS.append(["get_weather", city])
    return os.environ["WEATHER"]


def report(answer: object) -> None:
    """Prints the calls and the answer."""
    print(json.dumps({"calls": CALLS, "answer": str(answer)}))
