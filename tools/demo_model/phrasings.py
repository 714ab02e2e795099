"""A small grammar of requests: politeness, verb, object and the words that it is about.

A phrasing is a text with `{w}` where the words go. One in ten, chosen by a hash of its words, is
held out: no request in that phrasing is ever trained on.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tools.demo_model.example import is_held_out
from tools.demo_model.frames_of_lists import REVERSE_FRAMES, SORT_FRAMES
from tools.demo_model.frames_of_words import COPY_FRAMES, COUNT_FRAMES, UPPER_FRAMES

_ASKING = (
    "Please {v}", "Can you {v}?", "Could you {v}?", "Could you please {v}?", "Would you {v}?",
    "Can you please {v}?", "I want you to {v}", "I need you to {v}", "I would like you to {v}",
    "Now {v}", "Your task is to {v}", "Hi! Please {v}", "Hello, can you {v}?", "Help me: {v}",
    "You should {v}", "Will you {v}?", "{v}, please", "Hey, {v}", "Kindly {v}", "Try to {v}",
    "Let's {v}", "Next, {v}", "Go ahead and {v}", "I'd like you to {v}", "Just {v}",
    "Do me a favour and {v}", "It is your turn to {v}", "May I ask you to {v}?", "First, {v}",
    "Be so kind and {v}", "Are you able to {v}?", "You have to {v}", "I ask you to {v}",
    "Please be so good as to {v}", "I wonder if you can {v}", "Time to {v}", "Quickly {v}",
    "How about you {v}?", "Your job: {v}", "Why don't you {v}?", "My wish: {v}", "You must {v}",
)  # fmt: skip
_LIST_OBJECTS = (
    "these words", "the words", "this list", "the list", "the following words", "these",
    "the following list", "these items", "this list of words", "my words", "the words below",
    "my list", "the following", "this", "all of these words", "the items", "those words",
    "this word list", "the given words", "the items of this list", "the following items",
)  # fmt: skip
_SAID_BEFORE = (
    "{w}. {V}", "{w}\n{V}", "{w}\n\n{V}", "Here are some words: {w}. {V}", "{w} - {v}",
    "I have these words: {w}. {V}", "My words are {w}. {V}", "My list: {w}. {V}",
    "Take the words {w} and {v}", "Look at this list: {w}. {V}", "These are my words: {w}. {V}",
    "Given the words {w}, {v}", "The list is {w}. {V}", "Words: {w}. {V}",
    "Here is a list: {w}. {V}", "For the words {w}: {v}", "Here is my list:\n{w}\n{V}",
    "Take {w} and {v}", "Consider {w}. {V}", "Suppose I give you {w}. {V}", "With {w}: {v}",
    "What I have is {w}. {V}", "There are the words {w}. {V}", "In front of you: {w}. {V}",
    "I noted {w}. {V}", "On the table are {w}. {V}", "The following words: {w}.\n{V}",
    "Someone sent me this: {w}\n{V}", "My notes say {w}. {V}", "Let the list be {w}. {V}",
    "I bought {w}. {V}", "We need {w}. {V}", "Read this: {w}. {V}", "Input:\n{w}\n\n{V}",
)  # fmt: skip
_PRONOUNS = ("them", "these", "these words", "the words", "the list", "it")
_MARKS = (": ", ": ", ": ", ":\n", ":", " - ", ", namely ", " ")


@dataclass(frozen=True)
class Skill:
    """The wordings of one skill. `verbs` have `{o}` where the object goes."""

    name: str
    verbs: tuple[str, ...]
    objects: tuple[str, ...] = _LIST_OBJECTS
    direct: tuple[str, ...] = ()
    """Whole phrasings with `{w}`."""
    frames: tuple[str, ...] = ()
    """More of these, written to be as different from each other as users are."""

    def phrasing(self, rng: Random) -> str:
        """Some phrasing."""
        kind = rng.random()
        if kind < 0.5:
            return self._framed(rng.choice(self.frames), rng)
        kind = (kind - 0.5) * 2
        if self.direct and kind < 0.35:
            return self._framed(rng.choice(self.direct), rng)
        verb = rng.choice(self.verbs)
        if kind < 0.5:
            said = rng.choice(_SAID_BEFORE)
            order = _asked(verb.format(o=rng.choice(_PRONOUNS)), rng)
            small = order if order.startswith("I ") else order[0].lower() + order[1:]
            return said.replace("{V}", order[0].upper() + order[1:]).replace("{v}", small)
        if kind < 0.65:
            return self._framed(_asked(verb.format(o="{w}"), rng), rng)
        order = _asked(verb.format(o=rng.choice(self.objects)), rng)
        return self._framed(order.rstrip(".") + rng.choice(_MARKS) + "{w}", rng)

    def _framed(self, text: str, rng: Random) -> str:
        kind = rng.random()
        if kind < 0.12:
            return text.lower()
        if kind < 0.2:
            return text.removesuffix(".").removesuffix("?")
        return text[0].upper() + text[1:]


def _asked(verb: str, rng: Random) -> str:
    """The order alone, or in a polite form."""
    if rng.random() < 0.55:
        return verb + ("." if rng.random() < 0.7 else "")
    text = rng.choice(_ASKING).format(v=verb)
    return text if text.endswith("?") or rng.random() < 0.3 else text + "."


def wording(phrasing: str) -> str:
    """The words of a phrasing alone, with `{w}` for what it is about: without case and marks."""
    return " ".join(re.findall(r"\{w\}|[a-z0-9']+", phrasing.lower()))


def phrasing_key(phrasing: str) -> str:
    """The key by which phrasings are held out: the same however it is punctuated."""
    return f"phrasing:{wording(phrasing)}"


def drawn(skill: Skill, own: Sequence[str], rng: Random) -> str:
    """One of the skill's own few phrasings, or one of the grammar."""
    return rng.choice(own) if rng.random() < 0.1 else skill.phrasing(rng)


def is_new(phrasing: str) -> bool:
    """Whether it is one of those never trained on."""
    return is_held_out(phrasing_key(phrasing))


REVERSE = Skill("reverse words", (
    "reverse {o}", "reverse the order of {o}", "put {o} in reverse order", "write {o} backwards",
    "put {o} into reverse order", "list {o} in reverse", "give me {o} in reverse order",
    "flip the order of {o}", "turn the order of {o} around", "say {o} in reverse order",
    "show {o} from last to first", "read {o} backwards", "invert the order of {o}",
    "name {o} from the last to the first", "give {o} in the opposite order", "flip {o}",
    "arrange {o} in reverse order", "print {o} backwards", "reorder {o} from last to first",
    "return {o} in reverse", "repeat {o} in reverse order", "list {o} backwards",
    "write {o} in the opposite order", "write {o} from back to front", "turn {o} around",
    "start with the last of {o} and end with the first", "give me {o} backwards",
    "mirror {o}", "recite {o} backwards", "turn {o} back to front", "put {o} back to front",
    "change the direction of {o}", "list {o} from the end", "read {o} from the last to the first",
    "rewrite {o} in reversed order", "have {o} in the opposite direction", "rewind {o}",
    "name {o} from the bottom to the top", "tell me the reverse order of {o}", "inverse {o}",
    "repeat {o} from the back", "go through {o} from the end", "order {o} the other way",
), direct=(
    "Reverse: {w}", "Backwards: {w}", "{w} backwards", "{w} in reverse order", "reverse {w}",
    "What is {w} in reverse order?", "What are these words in reverse order: {w}?",
    "How do these words read backwards: {w}?", "{w}, but backwards", "{w} reversed",
    "In reverse order: {w}", "Reversed order of {w}?", "What is the reverse of {w}?",
    "What is the reverse order of {w}?", "I need {w} in reverse order.", "From last to first: {w}",
    "What do you get if you reverse {w}?", "The other way round: {w}", "Reverse this: {w}",
    "What is the reversed list of {w}?", "I want {w} in reverse.", "Reverse order: {w}",
), frames=REVERSE_FRAMES)  # fmt: skip
SORT = Skill("sort words", (
    "sort {o}", "sort {o} alphabetically", "put {o} in alphabetical order", "order {o} from A to Z",
    "order {o} alphabetically", "arrange {o} alphabetically", "arrange {o} in alphabetical order",
    "sort {o} from A to Z", "sort {o} by the alphabet", "write {o} in alphabetical order",
    "list {o} in alphabetical order", "give me {o} in alphabetical order", "sort {o} by letter",
    "bring {o} into alphabetical order", "show {o} sorted", "return {o} sorted", "list {o} sorted",
    "list {o} from A to Z", "put {o} into order from a to z", "rank {o} alphabetically",
    "order {o} by their first letters", "sort {o} as in a dictionary", "organize {o} from A to Z",
    "sort {o} in ascending order", "give {o} in the order of the alphabet",
    "line up {o} from A to Z", "file {o} by letter", "put {o} in ABC order", "index {o}",
    "arrange {o} by their first letter", "rearrange {o} by letter", "list {o} by the alphabet",
    "tell me the alphabetical order of {o}", "name {o} from A to Z", "say {o} in ABC order",
    "read {o} in dictionary order", "tidy up {o} by the alphabet", "group {o} by the alphabet",
    "place {o} in the order of a dictionary", "sequence {o} from A to Z", "have {o} sorted",
), direct=(
    "Sort: {w}", "Sorted: {w}", "sort {w}", "{w} in alphabetical order", "{w} sorted",
    "What is the alphabetical order of {w}?", "What are these words in alphabetical order: {w}?",
    "Alphabetical order: {w}", "From A to Z: {w}", "I need {w} in alphabetical order.",
    "How would a dictionary order {w}?", "In which order are {w} in a dictionary?",
    "What is {w} sorted alphabetically?", "{w}, sorted from A to Z", "A to Z: {w}",
    "What is the sorted list of {w}?", "I want {w} sorted.", "Which order do {w} have from A to Z?",
), frames=SORT_FRAMES)  # fmt: skip
COUNT = Skill("count words", (
    "count {o}", "count how many words are in {o}", "tell me how many words {o} has",
    "tell me the number of words in {o}", "give me the number of words in {o}",
    "find out how many words are in {o}", "say how many words there are in {o}",
    "count the words in {o}", "determine the number of words in {o}", "count the items in {o}",
    "work out how many words {o} contains", "give the word count of {o}",
    "tally the words in {o}", "add up the words in {o}", "report the number of words in {o}",
    "tell me how many entries {o} has", "tell me the size of {o}", "count every word in {o}",
    "check how many words {o} has", "let me know how many words {o} has", "number the words in {o}",
    "see how many words {o} holds", "name the number of words in {o}", "count off {o}",
), ("this list", "the list", "the following list", "this list of words", "my list", "this",
    "the following", "this text", "this line"), direct=(
    "How many words are there in {w}?", "How many words: {w}", "Number of words: {w}",
    "How many words do you see: {w}", "How many words are here: {w}", "Count: {w}",
    "How many words are in {w}?", "How many are these: {w}", "What is the word count of {w}?",
    "How many items are in this list: {w}", "How many words does this list have: {w}",
    "{w} - how many words are these?", "{w}. How many words is that?", "Word count: {w}",
    "How many words did I write: {w}", "What is the number of words in {w}?", "count {w}",
    "How many words have I listed: {w}", "how many words is this: {w}",
), frames=COUNT_FRAMES)  # fmt: skip
UPPER = Skill("upper-case words", (
    "write {o} in upper case", "write {o} in capital letters", "convert {o} to upper case",
    "put {o} in capitals", "make {o} upper case", "change {o} to capital letters", "capitalize {o}",
    "turn {o} into capital letters", "write {o} in capitals", "upper-case {o}", "uppercase {o}",
    "convert {o} to uppercase", "print {o} in capital letters", "write {o} with capital letters",
    "give me {o} in upper case", "write {o} in big letters", "spell {o} in capital letters",
    "show {o} in upper case", "transform {o} to upper case", "return {o} in upper case",
    "write {o} in all caps", "put {o} in all caps", "use only capital letters for {o}",
    "type {o} in capitals", "say {o} in capital letters", "rewrite {o} in upper case",
    "write {o} in block letters", "type {o} with caps lock on", "put {o} into big letters",
    "raise {o} to upper case", "print {o} in block capitals", "make all letters of {o} capitals",
    "use upper case for {o}", "make {o} big, in capitals", "repeat {o} in capitals",
    "have {o} in all caps", "render {o} in upper case", "state {o} in capitals",
), ("this", "these words", "the words", "the following", "this text", "the text", "the word",
    "this word", "the following words", "the following text", "all letters of this"), direct=(
    "Upper case: {w}", "Capitals: {w}", "{w} in upper case", "{w} in capital letters",
    "What is {w} in upper case?", "How do you write {w} in capital letters?", "All caps: {w}",
    "What does {w} look like in capitals?", "uppercase {w}", "Capital letters: {w}",
    "Write the word {w} in upper case.", "Upper-case the word {w}.", "{w}, in all caps",
    "Make the word {w} upper case.", "I need {w} in capitals.", "Put the word {w} in capitals.",
    "Write the words {w} in capital letters.", "Capitalize the word {w}.", "Uppercase: {w}",
), frames=UPPER_FRAMES)  # fmt: skip
COPY = Skill("copy", (
    "repeat {o}", "copy {o}", "say {o}", "write {o} again", "echo {o}", "repeat {o} exactly",
    "say {o} again", "copy {o} exactly", "give {o} back to me", "repeat {o} word for word",
    "write exactly {o}", "type {o}", "print {o}", "say exactly {o}",
    "parrot {o}", "reproduce {o}", "output {o}", "return {o} unchanged", "quote {o}",
), ("this", "the following", "this text", "the text", "these words", "my words",
    "the following words", "the following text"), direct=(
    "Repeat after me: {w}", "Say: {w}", "Copy: {w}", "Write: {w}", "Print: {w}", "Echo: {w}",
    "Answer with exactly this: {w}", "Say this back to me: {w}", "Reply with this: {w}",
    "Answer only with this: {w}", "Say the following: {w}", "Repeat this: {w}", "Print this: {w}",
), frames=COPY_FRAMES)  # fmt: skip
