"""Requests in wordings that no training text has, written by hand: scored, never trained on.

They are asked with training's words, so that only the wording is new. An honest refusal counts as
right: the model need not understand every wording, but it must not answer nonsense.
"""

from random import Random

from tools.demo_model.example import Item
from tools.demo_model.facts import REFUSAL
from tools.demo_model.wordplay import answer_to
from tools.demo_model.words import NOUNS, word_list

_REVERSE = (
    "I wrote {w}. What would that be the other way around?",
    "Could I get {w} in the reversed order, please?", "Do the reverse of {w} for me.",
    "Swap the order so that the last one comes first: {w}",
    "Let me see these in reverse: {w}", "{w} <- put that in reverse order",
    "Would it be possible to list {w} backwards?", "Tell me these words in backward order: {w}",
    "Begin at the end and write out {w}.", "I'd love to see {w} reversed.",
    "Given {w}, output the reversed list.", "reverse the sequence {w}",
)  # fmt: skip
_SORT = (
    "Could I have {w} sorted by name?", "Alphabetize {w}.", "Alphabetically, please: {w}",
    "Which of these comes first in the alphabet? Sort them all: {w}",
    "I have {w} and I need them alphabetically.", "Do an alphabetical sort of {w}.",
    "Sort ascending: {w}", "Make an alphabetical list of {w}.", "Can I get these sorted? {w}",
    "Given {w}, output them in alphabetical order.", "{w} <- sort that",
    "How do you order {w} alphabetically?",
)  # fmt: skip
_COUNT = (
    "Do you know how many words this is? {w}", "Tell me how many words I typed: {w}",
    "What's the count of words in {w}?", "Number of items: {w}", "How long is this list: {w}",
    "I typed {w}. How many words did I type?", "Please tell me the word count for {w}.",
    "How many words can you find in {w}?", "How many things are on my list: {w}",
    "Can you tell how many words these are: {w}",
)  # fmt: skip
_UPPER = (
    "Could I have {w} in capitals?", "SHOUT this: {w}", "I'd like to see {w} in upper case.",
    "Make {w} all capitals, please.", "How does {w} look in upper case?",
    "Set {w} in capital letters.", "Give me the upper-case version of {w}.",
    "Can I get {w} in all capital letters?", "Translate {w} into capital letters.",
    "{w} <- in capitals, please",
)  # fmt: skip
_ODD = (
    "What do you get when you read {n} from right to left?",
    "Take the letters of {n} and turn them round.", "Mirror the word {n} for me.",
    "How many vowels are there in {n}?", "Tell me a word that sounds like {n}.",
    "Break {n} into syllables.", "What language is the word {n} from?",
    "Put a hyphen between the letters of {n}.", "Is {n} longer than zebra?",
    "Write {n} with the letters in random order.", "Take every second letter of {n}.",
    "Compose a song about {n}.", "Which of {w} is the heaviest?", "What colour is {n} usually?",
    "Write a limerick with the word {n}.",
)  # fmt: skip
PHRASINGS = {"reverse": _REVERSE, "sort": _SORT, "count": _COUNT, "upper": _UPPER, "odd": _ODD}


def unseen_phrasing_items(seed: int, each: int = 3) -> list[Item]:
    """`each` items in every wording."""
    rng = Random(f"unseen phrasings {seed}")
    return [
        _item(kind, phrasing, rng)
        for kind, phrasings in PHRASINGS.items()
        for phrasing in phrasings
        for _ in range(each)
    ]


def _item(kind: str, phrasing: str, rng: Random) -> Item:
    words = ", ".join(word_list(rng, 2, 5))
    prompt = phrasing.replace("{w}", words).replace("{n}", rng.choice(NOUNS))
    name = "words, phrasings by hand"
    if kind == "odd":
        return Item(name, "", prompt, REFUSAL)
    return Item(name, "", prompt, answer_to(kind, words.split(", ")), may_decline=True)
