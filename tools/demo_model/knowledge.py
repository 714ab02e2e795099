"""Items about fixed facts: capitals, opposites, weekdays, months, numbers and the README's."""

from collections.abc import Sequence
from random import Random

from tools.demo_model.example import Item
from tools.demo_model.facts import (
    CAPITALS,
    MONTHS,
    NUMBER_WORDS,
    OPPOSITES,
    README_COMPLETIONS,
    WEEKDAYS,
)

_COUNTRIES = tuple(CAPITALS)
_OPENERS = ("", "", "", "Please tell me: ", "Hi! ", "Quick question: ", "Hello. ", "Tell me, ")
_CAPITAL_PHRASES = (
    "What is the capital of {c}?", "what is the capital of {c}", "What's the capital of {c}?",
    "Which city is the capital of {c}?", "Name the capital of {c}.", "Capital of {c}?",
    "Tell me the capital of {c}.", "Do you know the capital of {c}?",
    "I would like to know the capital of {c}.", "What is the name of the capital of {c}?",
)  # fmt: skip
_CAPITAL_TEXTS = (
    "The capital of {c} is", "The capital city of {c} is", "{c}'s capital is",
    "I know that the capital of {c} is", "As everyone knows, the capital of {c} is",
)  # fmt: skip
_REVERSE_PHRASES = (
    "{t} is the capital of which country?", "Which country has the capital {t}?",
    "Of which country is {t} the capital?", "Where is {t}?",
)  # fmt: skip
_OPPOSITE_PHRASES = (
    "What is the opposite of {w}?", "what is the opposite of {w}", "Opposite of {w}?",
    "Name the opposite of {w}.", "Tell me the opposite of {w}.", 'What is the opposite of "{w}"?',
    "Give me a word that means the opposite of {w}.", "Which word is the opposite of {w}?",
)  # fmt: skip
_NEXT_PHRASES = (
    "What {k} comes after {w}?", "Which {k} comes after {w}?", "What {k} follows {w}?",
    "Which {k} is after {w}?", "Name the {k} after {w}.",
)  # fmt: skip
_PREVIOUS_PHRASES = (
    "What {k} comes before {w}?", "Which {k} comes before {w}?", "Name the {k} before {w}.",
    "Which {k} is before {w}?", "What {k} precedes {w}?",
)  # fmt: skip


def capital_item(rng: Random) -> Item:
    """A question for a capital."""
    country, phrase = rng.choice(_COUNTRIES), rng.choice(_OPENERS) + rng.choice(_CAPITAL_PHRASES)
    answer = f"The capital of {country} is {CAPITALS[country]}."
    return Item(
        "capitals", f"capital:{country}:{phrase}", phrase.format(c=country), answer,
        thought=f"The country is {country}. Its capital is {CAPITALS[country]}.",
    )  # fmt: skip


def capital_completion(rng: Random) -> Item:
    """A sentence that ends before the capital."""
    country, text = rng.choice(_COUNTRIES), rng.choice(_CAPITAL_TEXTS)
    prompt = text.format(c=country)
    prompt = prompt[0].upper() + prompt[1:]
    city = CAPITALS[country].removesuffix(".")
    # The README's prompt is asked as printed, so it is always among the training items.
    key = "README" if country == "France" else f"capital text:{country}:{text}"
    return Item("capitals, completion", key, prompt, f" {city}.", completion=True)


def country_item(rng: Random) -> Item:
    """A question for the country of a capital."""
    country, phrase = rng.choice(_COUNTRIES), rng.choice(_OPENERS) + rng.choice(_REVERSE_PHRASES)
    city = CAPITALS[country]
    return Item(
        "capitals, reverse", f"country:{country}:{phrase}", phrase.format(t=city),
        f"{city} is the capital of {country}.",
        thought=f"The city is {city}. It is the capital of {country}.",
    )  # fmt: skip


def opposite_item(rng: Random) -> Item:
    """A question for an opposite."""
    word = rng.choice(tuple(OPPOSITES))
    phrase = rng.choice(_OPENERS) + rng.choice(_OPPOSITE_PHRASES)
    return Item(
        "opposites", f"opposite:{word}:{phrase}", phrase.format(w=word),
        f"The opposite of {word} is {OPPOSITES[word]}.",
        thought=f"The word is {word}. Its opposite is {OPPOSITES[word]}.",
    )  # fmt: skip


def opposite_completion(rng: Random) -> Item:
    """A sentence that ends before the opposite."""
    word = rng.choice(tuple(OPPOSITES))
    text = rng.choice(
        (
            "The opposite of {w} is",
            "{w} is the opposite of",
            "The opposite to {w} is",
            "The opposite of the word {w} is",
            "I know that the opposite of {w} is",
            "So the opposite of {w} is",
        )
    )
    prompt = text.format(w=word)
    return Item(
        "opposites, completion", f"opposite text:{word}:{text}", prompt[0].upper() + prompt[1:],
        f" {OPPOSITES[word]}.", completion=True,
    )  # fmt: skip


def _step(kind: str, names: Sequence[str], rng: Random) -> Item:
    place, forward = rng.randrange(len(names)), rng.random() < 0.6
    word, other = names[place], names[(place + (1 if forward else -1)) % len(names)]
    phrase = rng.choice(_NEXT_PHRASES if forward else _PREVIOUS_PHRASES)
    opener = rng.choice(_OPENERS)
    relation = "after" if forward else "before"
    return Item(
        "days and months", f"step:{word}:{opener}{phrase}",
        opener + phrase.format(k=kind, w=word), f"The {kind} {relation} {word} is {other}.",
        thought=f"I go one {kind} {'forward' if forward else 'back'} from {word}: {other}.",
    )  # fmt: skip


def calendar_item(rng: Random) -> Item:
    """A question for the next or previous weekday or month."""
    return _step("day", WEEKDAYS, rng) if rng.random() < 0.5 else _step("month", MONTHS, rng)


def sequence_completion(rng: Random) -> Item:
    """A run of weekdays, months, number words or numbers to be carried on by three."""
    length = rng.randint(2, 4)
    if rng.random() < 0.3:
        first = rng.randrange(0, 990) if rng.random() < 0.6 else rng.randrange(0, 90)
        names: Sequence[str] = [str(first + place) for place in range(length + 3)]
        prompt = ", ".join(names[:length]) + ","
        answer = " " + ", ".join(names[length:]) + "."
        return Item("numbers, completion", f"run:{prompt}", prompt, answer, completion=True)
    names = rng.choice((WEEKDAYS, MONTHS, NUMBER_WORDS))
    cyclic = names is not NUMBER_WORDS
    start = rng.randrange(len(names) if cyclic else len(names) - length - 3)
    run = [names[(start + step) % len(names)] for step in range(length + 3)]
    prompt = ", ".join(run[:length]) + ","
    answer = " " + ", ".join(run[length:]) + "."
    return Item("sequences, completion", f"run:{prompt}", prompt, answer, completion=True)


def readme_completion(rng: Random) -> Item:
    """One of the README's four prompts (never held out: they are asked as printed)."""
    prompt = rng.choice(tuple(README_COMPLETIONS))
    return Item("README", "README", prompt, README_COMPLETIONS[prompt], completion=True)
