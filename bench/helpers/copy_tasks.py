"""Forty tasks whose replies repeat most of their input: files to edit, documents to quote, fields
to write as JSON, and lists to repeat with changes. All are written here, from a seed.

A prompt ends where the reply begins, so that models without a chat template understand it too.
"""

from __future__ import annotations

import json
import random

_NOUNS = ("order", "invoice", "parcel", "ticket", "sensor", "report", "member", "session")
_VERBS = ("load", "store", "check", "count", "merge", "split", "sort", "send", "close", "open")
_TOWNS = ("Oslo", "Porto", "Graz", "Lyon", "Bergen", "Utrecht", "Malmo", "Tartu", "Ghent")
_NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gita", "Hugo", "Ines", "Jon")


def copy_tasks(seed: int = 1) -> list[str]:
    """The prompts, ten of each kind."""
    chance = random.Random(seed)
    kinds = (_edit, _quote, _as_json, _repeat)
    return [kind(chance) for _ in range(10) for kind in kinds]


def _edit(chance: random.Random) -> str:
    """A file of code in which a name changes."""
    old, new = chance.sample(_NOUNS, 2)
    functions = [
        f"def {verb}_{old}({old}, limit={chance.randrange(9, 99)}):\n"
        f'    """{verb.title()} one {old} and return its number."""\n'
        f"    if {old}.size > limit:\n"
        f'        raise ValueError(f"{old} {{{old}.name}} is too large")\n'
        f"    return {old}.number + {chance.randrange(100)}\n"
        for verb in chance.sample(_VERBS, 5)
    ]
    code = "\n\n".join(functions)
    return (
        f"File before:\n```python\n{code}```\n\n"
        f"The same file, in which only the name `{old}` is replaced by `{new}`:\n```python\n"
    )


def _quote(chance: random.Random) -> str:
    """A document of which a part is to be quoted word for word."""
    lines = [
        f"{number}. On day {chance.randrange(1, 28)} {chance.choice(_NAMES)} from "
        f"{chance.choice(_TOWNS)} had to {chance.choice(_VERBS)} the {chance.choice(_NOUNS)} with "
        f"the number {chance.randrange(10_000)}, because the one before had been damaged."
        for number in range(1, 13)
    ]
    text = "\n".join(lines)
    return f"Document:\n{text}\n\nThe document again, word for word:\n1."


def _as_json(chance: random.Random) -> str:
    """A table whose rows are to be written as JSON objects."""
    rows = [
        (chance.choice(_NAMES), chance.choice(_TOWNS), chance.randrange(10_000), noun)
        for noun in chance.sample(_NOUNS, 8)
    ]
    table = "\n".join(f"{name} | {town} | {number} | {noun}" for name, town, number, noun in rows)
    keys = ("name", "town", "number", "thing")
    first = f'[{json.dumps(dict(zip(keys, rows[0], strict=True)))},\n {{"name": "'
    return f"name | town | number | thing\n{table}\n\nThe same table as JSON:\n{first}"


def _repeat(chance: random.Random) -> str:
    """A list that is to be repeated with one change in each line."""
    lines = [
        f"- {chance.choice(_NAMES)} will {chance.choice(_VERBS)} the {chance.choice(_NOUNS)} in "
        f"{chance.choice(_TOWNS)} at {chance.randrange(8, 18)}:00 and report to the office."
        for _ in range(10)
    ]
    text = "\n".join(lines)
    return (
        f"Plan for Monday:\n{text}\n\nPlan for Tuesday, the same with every line one hour later:\n-"
    )
