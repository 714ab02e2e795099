"""Items that rework words: reverse, sort, count, upper-case and copy."""

from random import Random

from tools.demo_model.example import Item
from tools.demo_model.words import NOUNS, invented_word, some_word, word_list

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


def _join(words: list[str], rng: Random) -> str:
    return (", " if rng.random() < 0.7 else " ").join(words)


def reverse_item(rng: Random) -> Item:
    """Words to be given in reverse order."""
    words = word_list(rng, 2, 6)
    answer = ", ".join(reversed(words))
    prompt = rng.choice(_REVERSE_PHRASES).format(w=_join(words, rng))
    thought = f"I start with the last word, {words[-1]}, and end with the first, {words[0]}."
    return Item("reverse words", f"reverse:{words}", prompt, answer, thought=thought)


def sort_item(rng: Random) -> Item:
    """Words to be sorted alphabetically."""
    words = word_list(rng, 2, 5)
    ordered = sorted(words)
    prompt = rng.choice(_SORT_PHRASES).format(w=_join(words, rng))
    letters = ", ".join(word[0] for word in ordered)
    thought = f"I order the words by their letters: {letters}."
    return Item("sort words", f"sort:{sorted(words)}", prompt, ", ".join(ordered), thought=thought)


def count_item(rng: Random) -> Item:
    """Words to be counted."""
    words = word_list(rng, 1, 9)
    prompt = rng.choice(_COUNT_PHRASES).format(w=_join(words, rng))
    number = len(words)
    answer = f"There {'is 1 word' if number == 1 else f'are {number} words'}."
    numbered = ", ".join(f"{place} {word}" for place, word in enumerate(words, 1))
    return Item("count words", f"count:{words}", prompt, answer, thought=f"I count: {numbered}.")


def upper_item(rng: Random) -> Item:
    """One to six words to be written in capital letters."""
    words = rng.sample(NOUNS, rng.choice((1, 1, 2, 3, 5, 6)))
    text = " ".join(words)
    prompt = rng.choice(_UPPER_PHRASES).format(w=text)
    thought = f"I change every letter of {text} to a capital letter."
    return Item("upper-case words", f"upper:{text}", prompt, text.upper(), thought=thought)


def copy_item(rng: Random) -> Item:
    """Words, invented words or digits to be repeated."""
    kind = rng.random()
    if kind < 0.6:
        text = " ".join(some_word(rng) for _ in range(rng.randint(2, 12)))
    elif kind < 0.8:
        text = " ".join(invented_word(rng) for _ in range(rng.randint(1, 5)))
    else:
        text = "".join(rng.choice("0123456789") for _ in range(rng.randint(3, 10)))
    prompt = rng.choice(_COPY_PHRASES).format(w=text)
    thought = "I repeat the text as it is."
    return Item("copy", f"copy:{text}", prompt, text, thought=thought)


def copy_completion(rng: Random) -> Item:
    """A list of words begun a second time as plain text: the purest form of induction."""
    words = list(dict.fromkeys(some_word(rng) for _ in range(rng.randint(5, 20))))
    shown = rng.randint(1, 2)
    prompt = " ".join(words) + "\n" + " ".join(words[:shown])
    answer = " " + " ".join(words[shown:])
    return Item("copy, completion", f"copy:{words}", prompt, answer, completion=True)
