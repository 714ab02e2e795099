"""Items that rework words: reverse, sort, count, upper-case and copy."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from tools.demo_model.courtesies import courteous
from tools.demo_model.example import Item
from tools.demo_model.frames_of_words import NAME_FRAMES
from tools.demo_model.phrasings import (
    COPY,
    COUNT,
    REVERSE,
    SORT,
    UPPER,
    Skill,
    drawn,
    is_new,
    phrasing_key,
    wording,
)
from tools.demo_model.words import (
    SURNAMES,
    invented_word,
    listed_words,
    some_name,
    some_word,
)

_REVERSE_PHRASES = (
    "Reverse the order of these words: {w}", "Reverse these words: {w}",
    "Write these words in reverse order: {w}", "Say these words backwards: {w}",
    "Please reverse the list: {w}", "Put these words in the opposite order: {w}",
)  # fmt: skip
_SORT_PHRASES = (
    "Sort these words: {w}", "Sort these words alphabetically: {w}",
    "Put these words in alphabetical order: {w}", "Please sort the list: {w}",
    "Order these words from A to Z: {w}", "Write these words in alphabetical order: {w}",
)  # fmt: skip
_COUNT_PHRASES = (
    "How many words are in this list: {w}", "Count these words: {w}", "Count the words: {w}",
    "How many words are these: {w}", "Please count the words in the list: {w}",
)  # fmt: skip
_UPPER_PHRASES = (
    "Write in upper case: {w}", "Write {w} in capital letters.", "Make this upper case: {w}",
    "Convert to upper case: {w}", "Please write {w} in upper case.", "Upper-case this: {w}",
)  # fmt: skip
_COPY_PHRASES = (
    "Repeat after me: {w}", "Repeat: {w}", "Copy this text: {w}", "Say exactly this: {w}",
    "Please repeat the following words: {w}", "Echo: {w}",
)  # fmt: skip


# Quotes and separators of a list of words as users write it.
_SEPARATORS = (", ", ", ", ", ", " ", " ", ",", "; ", " and ", "\n", "\n- ", " / ", " | ")
_QUOTES = ("'{}'", '"{}"')


def _join(words: Sequence[str], rng: Random) -> str:
    separator = rng.choice(_SEPARATORS) if rng.random() < 0.6 else ", "
    quote = rng.choice(_QUOTES) if rng.random() < 0.1 else "{}"
    quoted = [quote.format(word) for word in words]
    if separator == ", " and len(words) > 1 and rng.random() < 0.15:
        return ", ".join(quoted[:-1]) + " and " + quoted[-1]
    text = ("- " if separator == "\n- " else "") + separator.join(quoted)
    return rng.choice(_QUOTES).format(text) if quote == "{}" and rng.random() < 0.06 else text


def _item(rng: Random, skill: Skill, own: Sequence[str], text: str, item: Item) -> Item:
    """The item asked in some phrasing; one in a phrasing held out is of the row for these."""
    phrasing = drawn(skill, own, rng)
    item = replace(item, prompt=courteous(phrasing, rng).replace("{w}", text))
    if is_new(phrasing) and wording(phrasing) not in map(wording, own):
        return replace(item, skill="words, new phrasings", key=phrasing_key(phrasing))
    return item


def answer_to(kind: str, words: Sequence[str]) -> str:
    """The right answer about some words."""
    match kind:
        case "reverse":
            return ", ".join(reversed(words))
        case "sort":
            return ", ".join(sorted(words))
        case "upper":
            return ", ".join(words).upper()
        case "count":
            return f"There {'is 1 word' if len(words) == 1 else f'are {len(words)} words'}."
        case _:
            raise ValueError(f"{kind} is none of reverse, sort, upper and count.")


def reverse_item(rng: Random) -> Item:
    """Words to be given in reverse order."""
    words = listed_words(rng, 2, 6)
    thought = f"I start with the last word, {words[-1]}, and end with the first, {words[0]}."
    item = Item("reverse words", f"reverse:{words}", "", answer_to("reverse", words), thought)
    return _item(rng, REVERSE, _REVERSE_PHRASES, _join(words, rng), item)


def sort_item(rng: Random) -> Item:
    """Words to be sorted alphabetically."""
    words = listed_words(rng, 2, 5)
    letters = ", ".join(word[0] for word in sorted(words))
    thought = f"I order the words by their letters: {letters}."
    item = Item("sort words", f"sort:{sorted(words)}", "", answer_to("sort", words), thought)
    return _item(rng, SORT, _SORT_PHRASES, _join(words, rng), item)


def count_item(rng: Random) -> Item:
    """Words to be counted."""
    words = listed_words(rng, 1, 9)
    numbered = ", ".join(f"{place} {word}" for place, word in enumerate(words, 1))
    answer = answer_to("count", words)
    item = Item("count words", f"count:{words}", "", answer, f"I count: {numbered}.")
    return _item(rng, COUNT, _COUNT_PHRASES, _join(words, rng), item)


def upper_item(rng: Random) -> Item:
    """One to six words to be written in capital letters."""
    count = rng.choice((1, 1, 2, 2, 3, 4, 5, 6))
    words = listed_words(rng, count, count)
    text = rng.choice((" ", ", ")).join(words)
    thought = f"I change every letter of {text} to a capital letter."
    item = Item("upper-case words", f"upper:{text}", "", text.upper(), thought)
    shown = rng.choice(_QUOTES).format(text) if rng.random() < 0.2 else text
    return _item(rng, UPPER, _UPPER_PHRASES, shown, item)


def copy_item(rng: Random) -> Item:
    """Words, names, invented words or digits to be repeated."""
    kind = rng.random()
    if kind < 0.25:
        return _names_item(rng)
    kind = (kind - 0.25) / 0.75
    if kind < 0.6:
        text = " ".join(some_word(rng) for _ in range(rng.randint(2, 12)))
    elif kind < 0.8:
        text = " ".join(invented_word(rng) for _ in range(rng.randint(1, 5)))
    else:
        text = "".join(rng.choice("0123456789") for _ in range(rng.randint(3, 10)))
    item = Item("copy", f"copy:{text}", "", text, "I repeat the text as it is.")
    return _item(rng, COPY, _COPY_PHRASES, text, item)


def _names_item(rng: Random) -> Item:
    """First or full names to be repeated, letter for letter."""
    count = rng.choice((1, 1, 2, 3, 4))
    names = [
        f"{some_name(rng)} {rng.choice(SURNAMES)}" if rng.random() < 0.25 else some_name(rng)
        for _ in range(count)
    ]
    text = ", ".join(names)
    if count > 1 and rng.random() < 0.5:
        text = ", ".join(names[:-1]) + " and " + names[-1]
    item = Item("copy", f"copy:{text}", "", text, "I repeat the names as they are.")
    if rng.random() < 0.5:
        return _item(rng, COPY, _COPY_PHRASES, text, item)
    prompt = courteous(rng.choice(NAME_FRAMES), rng).replace("{w}", text)
    return replace(item, prompt=prompt)


def copy_completion(rng: Random) -> Item:
    """A list of words begun a second time as plain text: the purest form of induction."""
    words = list(dict.fromkeys(some_word(rng) for _ in range(rng.randint(5, 20))))
    shown = rng.randint(1, 2)
    prompt = " ".join(words) + "\n" + " ".join(words[:shown])
    answer = " " + " ".join(words[shown:])
    return Item("copy, completion", f"copy:{words}", prompt, answer, completion=True)
