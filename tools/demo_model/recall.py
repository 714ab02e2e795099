"""Items that ask for something said earlier: a needle in filler text, or an earlier turn."""

from collections.abc import Callable
from random import Random

from tools.demo_model.example import Item, Message, exchange
from tools.demo_model.facts import CITIES
from tools.demo_model.words import (
    ADJECTIVES,
    ANIMALS,
    COLORS,
    NAMES,
    NOUNS,
    article,
    invented_word,
    some_name,
    some_word,
)

_FILLER = (
    "The {a} {n} is next to the {m}.", "{p} saw {an} near the {m}.", "It was a {a} day in {c}.",
    "Nobody knows why the {n} is so {a}.", "{p} and {q} went to {c} with the {n}.",
    "There is {an} under the {a} {m}.", "The {n} was {a}, but the {m} was {b}.",
    "{p} likes the {a} {n}.", "In {c} you can see a {b} {m}.", "Every morning {p} cleans the {n}.",
    "The {m} and the {n} are {b}.", "{p} told {q} about the {n}.",
)  # fmt: skip
_FACTS = (
    "The secret word is {w}.", "The secret word is {w}.", "Remember: the secret word is {w}.",
    "By the way, the secret word is {w}.", "Please note that the secret word is {w}.",
)  # fmt: skip
_ASKS = (
    "What is the secret word?", "What was the secret word?", "Tell me the secret word.",
    "Which secret word did the text mention?", "what is the secret word",
    "Do you remember the secret word?",
)  # fmt: skip


def filler_sentence(rng: Random) -> str:
    """A sentence of no importance."""
    return rng.choice(_FILLER).format(
        a=rng.choice(ADJECTIVES), b=rng.choice(ADJECTIVES), n=rng.choice(NOUNS),
        an=article(rng.choice(NOUNS)), m=rng.choice(NOUNS), p=rng.choice(NAMES),
        q=rng.choice(NAMES), c=rng.choice(CITIES),
    )  # fmt: skip


def filler(rng: Random, sentences: int) -> list[str]:
    """That many sentences of no importance."""
    return [filler_sentence(rng) for _ in range(sentences)]


def needle_item(rng: Random, sentences: int) -> Item:
    """A secret word somewhere in filler, asked for at the end (or after it, in a new turn)."""
    word, text = some_word(rng), filler(rng, sentences)
    text.insert(rng.randint(0, sentences), rng.choice(_FACTS).format(w=word))
    body, ask = " ".join(text), rng.choice(_ASKS)
    history: tuple[Message, ...] = ()
    style = rng.random()
    if style < 0.3:
        history = (
            {"role": "user", "content": body},
            {"role": "assistant", "content": "I have read the text."},
        )
        prompt = ask
    else:
        prompt = f"{ask}\n\n{body}" if style < 0.4 else f"{body}\n\n{ask}"
    return Item(
        "needle", f"needle:{word}", prompt, f"The secret word is {word}.",
        thought=f"The text says that the secret word is {word}.", history=history,
    )  # fmt: skip


def needle_completion(rng: Random, sentences: int) -> Item:
    """The secret word in filler as plain text, which then begins to repeat it."""
    word, text = some_word(rng), filler(rng, sentences)
    text.insert(rng.randint(0, sentences), rng.choice(_FACTS).format(w=word))
    prompt = " ".join(text) + rng.choice(("\n\n", " ")) + "So the secret word is"
    return Item("needle, completion", f"needle:{word}", prompt, f" {word}.", completion=True)


def _pick(*values: str) -> Callable[[Random], str]:
    return lambda rng: rng.choice(values)


def _password(rng: Random) -> str:
    return invented_word(rng) if rng.random() < 0.5 else some_word(rng)


Maker = Callable[[Random], str]
# What is said, what is asked, what is answered, and how the value is made.
_MEMORIES: dict[str, tuple[tuple[str, ...], tuple[str, ...], str, Maker]] = {
    "name": (
        ("My name is {v}.", "Hi, I am {v}.", "Hello, my name is {v}.", "I'm {v}.", "Call me {v}."),
        ("What is my name?", "Who am I?", "Do you remember my name?", "What's my name?",
         "what is my name", "Tell me my name."),
        "Your name is {v}.", some_name,
    ),
    "color": (
        ("My favorite color is {v}.", "I like the color {v} best."),
        ("What is my favorite color?", "Which color do I like best?"),
        "Your favorite color is {v}.", _pick(*COLORS),
    ),
    "city": (
        ("I live in {v}.", "My home is in {v}."),
        ("Where do I live?", "In which city do I live?"),
        "You live in {v}.", _pick(*(city for city in CITIES if "." not in city)),
    ),
    "pet": (
        ("I have a pet {v}.", "My pet is a {v}."),
        ("What pet do I have?", "Which animal is my pet?"),
        "You have a pet {v}.", _pick(*(animal for animal in ANIMALS if animal[0] not in "aeiou")),
    ),
    "number": (
        ("My lucky number is {v}.", "Remember the number {v}."),
        ("What is my lucky number?", "Which number should you remember?"),
        "Your number is {v}.", lambda rng: str(rng.randrange(10, 10000)),
    ),
    "word": (
        ("The password is {v}.", "Remember this word: {v}."),
        ("What is the password?", "Which word should you remember?"),
        "The word is {v}.", _password,
    ),
}  # fmt: skip


def memory_item(rng: Random, between: list[Item]) -> Item:
    """One to three things said about oneself, `between` in the middle, then one is asked for."""
    kinds = ["name", *rng.sample(sorted(_MEMORIES), 2)] if rng.random() < 0.5 else ["name"]
    if rng.random() < 0.4:
        kinds = rng.sample(sorted(_MEMORIES), rng.randint(1, 3))
    kinds = list(dict.fromkeys(kinds))
    rng.shuffle(kinds)
    values = {kind: _MEMORIES[kind][3](rng) for kind in kinds}
    said = [rng.choice(_MEMORIES[kind][0]).format(v=values[kind]) for kind in kinds]
    asked = rng.choice(kinds)
    turns = [" ".join(said)] if rng.random() < 0.6 else said
    history: list[Message] = []
    for turn in turns:
        history += exchange(_told(f"told:{turn}", turn, values.get("name")))
    for item in between:
        history += exchange(item)
    answer = _MEMORIES[asked][2].format(v=values[asked])
    # A held-out name or word is never asked for in training; the other kinds have few values.
    wide = asked in ("name", "word", "number")
    key = f"memory:{asked}:{values[asked] if wide else sorted(values.items())}"
    return Item(
        "memory", key, rng.choice(_MEMORIES[asked][1]), answer,
        thought=f"The user told me: {answer}", history=tuple(history),
    )  # fmt: skip


def reply_to_facts(turn: str, name: str | None) -> str:
    """The model's reply to a fact."""
    return f"Nice to meet you, {name}!" if name and name in turn else "I will remember that."


def told_item(rng: Random) -> Item:
    """Being told something, as a turn of its own."""
    kind = rng.choice(("name", "name", *sorted(_MEMORIES)))
    value = _MEMORIES[kind][3](rng)
    turn = rng.choice(_MEMORIES[kind][0]).format(v=value)
    return _told(f"told:{kind}:{value}", turn, value if kind == "name" else None)


def _told(key: str, turn: str, name: str | None) -> Item:
    return Item(
        "being told", key, turn, reply_to_facts(turn, name),
        thought="The user tells me something. I should remember it.",
    )  # fmt: skip
