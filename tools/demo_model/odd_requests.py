"""Requests near to what the model can do that it cannot: letters, single words, other numbers."""

from dataclasses import replace
from random import Random

from tools.demo_model.example import Item
from tools.demo_model.talk import refused
from tools.demo_model.words import ADJECTIVES, NAMES, NOUNS, article, invented_word, word_list

_ODD_REQUESTS = (
    "Reverse the word {q}.", "Spell {q} backwards.", "Reverse the letters of {q}.", "Spell {q}.",
    "Write the word {q} backwards.", "What is {q} spelled backwards?", "Say {q} backwards.",
    "How many letters are in the word {q}?", "How many letters does {q} have?", "Reverse {q}.",
    "Count the letters in {q}.", "Which letter comes first in {q}?", "Count the vowels in {q}.",
    "What is the last letter of {q}?", "What rhymes with {q}?", "Use {q} in a sentence.",
    "Define {q}.", "What does {q} mean?", "Remove the vowels from {q}.", "Sort the letters of {q}.",
    "Shuffle these words: {l}", "Which of these words is the longest: {l}", "Flip the word {q}.",
    "Which of these words is the shortest: {l}", "Make a sentence of these words: {l}",
    "Translate these words into {u}: {l}", "Translate {q} into {u}.", "Say {q} in {u}.",
    "What is the plural of {q}?", "Give me a synonym of {q}.", "Find a word that rhymes with {q}.",
    "Turn the letters of {q} around.", "Can you spell the word {q}?", "Sort these numbers: {m}",
    "Remove the word {n} from this list: {l}", "Which of these words is an animal: {l}",
    "Can you reverse the word {q}?", "Please spell {q} backwards.", "Draw {an} in letters.",
    "Join these words into one: {l}", "What is the average of {m}?", "Write {n} in Morse code.",
    "Write the letters of {q} in reverse.", "Replace {n} with something better.",
    "What is the square root of {k}?", "Divide {k} by {d}.", "What is {k} divided by {d}?",
    "Convert {k} miles to kilometers.", "Is {k} a prime number?", "What is {d} percent of {k}?",
    "Write {k} in words.", "Count to {k}.", "Give me a random number.", "Guess a number.",
    "Encrypt the text {q}.", "Make an anagram of {q}.", "Which word does not belong: {l}",
    "Reverse every word: {l}", "Reverse the letters of each word: {l}", "Pick one of these: {l}",
    "Give me the first letters of these words: {l}", "Write these words in lower case: {l}",
    "Write {q} in Chinese letters.", "Is {q} a noun?", "What is the third word of {l}?",
)  # fmt: skip
_PRODUCTS = (
    "What is {k} times {d}?", "Multiply {k} by {d}.", "What is {k} * {d}?", "{k} * {d}",
    "{k} x {d}",
)  # fmt: skip
_LANGUAGES = ("French", "German", "Spanish", "Latin", "Italian", "Chinese", "Russian", "Greek")


def odd_request_item(rng: Random) -> Item:
    """A question about words or numbers that the model cannot answer."""
    kind = rng.random()
    word = invented_word(rng) if kind < 0.15 else rng.choice((*NOUNS, *NAMES, *ADJECTIVES))
    quoted = rng.choice(("{}", "{}", "'{}'", '"{}"')).format(word)
    numbers = ", ".join(str(rng.randint(1, 99)) for _ in range(rng.randint(3, 6)))
    is_product = rng.random() < 0.06
    prompt = rng.choice(_PRODUCTS if is_product else _ODD_REQUESTS).format(
        q=quoted, n=word, an=article(word), l=", ".join(word_list(rng, 3, 6)), m=numbers,
        u=rng.choice(_LANGUAGES), k=rng.randint(2, 999), d=rng.randint(2, 99),
    )  # fmt: skip
    return replace(refused(rng, prompt), would_call=("multiply",) if is_product else ())
