"""Requests near to what the model can do that it cannot: letters, single words, other numbers.

None of the requests about words is one that the score asks (`unseen_phrasings.py`), nor near one:
a test compares them. `{q}` is a word, at times in quotes, `{n}` and `{b}` are words without, `{an}`
and `{bn}` are these with their article, `{c}` is one in capitals, `{l}` a list of words.
"""

from dataclasses import replace
from random import Random

from tools.demo_model.courtesies import courteous
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
LETTERS = (
    "Reverse the spelling of {q}.", "Give me {q} with its letters reversed.",
    "{q} spelled in reverse",
    "Flip the letters in {q}.", "What is {q} with the letters the wrong way round?",
    "Write {q} letter by letter from the end.", "Write {q} in mirror writing.", "Spell out {q}.",
    "What is {q} if its last letter comes first?", "Turn {q} inside out.", "Is {q} a palindrome?",
    "Which word is {q} when you start at its last letter?", "Make a palindrome of {q}.",
    "How many consonants are in {q}?", "Which vowels does {q} contain?", "Is there an e in {q}?",
    "How many letters has {q}?", "How many letters make up {q}?", "Number of letters in {q}?",
    "Letter count of {q}, please.", "How long is the word {q}?", "How many characters is {q}?",
    "Count the characters of {q}.", "Does {q} contain the letter a?", "Where is the r in {q}?",
    "How often does the letter o occur in {q}?", "What is the middle letter of {q}?",
    "What is the second letter of {q}?", "Which letter does {q} end with?", "Cut {q} in half.",
    "What letter does {q} start with?", "Drop the last letter of {q}.",
    "Double the letters of {q}.",
    "Leave out the first letter of {q}.", "Take the e out of {q}.", "Space out the letters of {q}.",
    "Insert a star after each letter of {q}.", "Write {q} from top to bottom.", "Scramble {q}.",
    "Rearrange the letters of {q}.", "What words can be made of the letters of {q}?",
    "Find an anagram for {q}.", "Which word has the same letters as {q}?", "Jumble up {q}.",
    "Put the letters of {q} in alphabetical order.", "Order the letters in {q} from A to Z.",
    "Which letter of {q} is nearest to A?", "What is the number of the letter {n} starts with?",
    "Swap the first and the last letter of {q}.", "Change one letter of {q}.", "Hyphenate {q}.",
    "How many syllables has {q}?", "Which syllable of {q} is stressed?", "Clap the word {q}.",
    "Capitalize only the first letter of {q}.", "Write {q} in small letters.", "Lower case: {q}",
    "Make {q} lower case.", "Convert {c} to lower case.", "Write {c} with small letters.",
    "Write every other letter of {q} as a capital.", "Write {q} in binary.", "Encode {q}.",
    "Write {q} in a secret code.", "Shift the letters of {q} by {d}.", "Write {q} in pig Latin.",
    "Write {q} in Greek letters.", "Write {n} as an emoji.", "Abbreviate {q}.", "Shorten {q}.",
)  # fmt: skip
WORDS = (
    "Give me rhymes for {q}.", "Rhyme with {q}!", "Name three words that rhyme with {q}.",
    "I need a rhyme for {q}.", "Does {q} rhyme with {b}?", "Which word ends like {q}?",
    "Do {n} and {b} rhyme?", "{q} - what rhymes?", "Find a synonym for {q}.",
    "Another word for {q}?",
    "What else can I say for {q}?", "What is a better word than {q}?", "What is like {an}?",
    "How do you say {q} in {u}?", "What is {q} called in {u}?", "Write {q} in {u}.", "{q} in {u}?",
    "What is the {u} word for {q}?", "Translate to {u}: {q}", "Please translate: {q}",
    "Translate to {u}: {l}", "What do {l} mean in {u}?", "Give me {l} in {u}.",
    "{q}, in {u} please",
    "Translate {l} for me.", "I need {q} in {u}.", "How is {q} pronounced?", "How do I say {q}?",
    "Is {q} spelled correctly?", "Check the spelling of {q}.", "Correct the spelling: {q}",
    "Where does the word {q} come from?", "What is the origin of {q}?", "Is {q} a verb?",
    "Since when do people say {q}?", "What part of speech is {q}?", "Is {q} an English word?",
    "What is the adjective of {q}?", "What is the past tense of {q}?", "Put {q} in the plural.",
    "Is {q} singular or plural?", "Explain the word {q}.", "What is meant by {q}?",
    "Tell me what {q} means.", "Give me a definition of {q}.", "Describe {an}.",
    "What does {an} look like?", "What is {an} made of?", "How big is {an}?", "How heavy is {an}?",
    "Where do I find {an}?", "What can I do with {an}?", "Who needs {an}?",
    "What is {an} good for?",
    "Is {an} dangerous?", "How does {an} taste?", "Name a famous {n}.", "How much is {an}?",
    "What is the difference between {an} and {bn}?", "Which is bigger, {an} or {bn}?",
    "Which word is longer, {q} or {b}?", "Which has more letters, {q} or {b}?", "{n} or {b}?",
    "Which comes first in a dictionary, {q} or {b}?", "Compare {an} with {bn}.",
    "What sound does {an} make?", "What does {an} eat?", "Which shape has {an}?",
    "Is {an} expensive?", "What goes well with {an}?", "What is the smell of {an}?",
    "Write a haiku about {n}.", "Write a rhyme about {an}.", "Make up a riddle about {an}.",
    "Sing something about {n}.", "Write a slogan for {n}.", "Make a tongue twister with {n}.",
    "Write a letter to {an}.", "Write a headline about {an}.", "Make a pun with {q}.",
    "Write verses about {an}.", "Rap about {n}.", "Invent a fairy-tale title with {q}.",
    "Write a dialogue between {an} and {bn}.", "Think of a name for my {n}.", "Paint me {an}.",
    "Make a compound word with {q}.", "Finish this sentence: The {n} is", "Complete: {n} and",
    "What do you associate with {q}?", "Which word goes with {q}?", "Put {q} into a sentence.",
    "Form a question with {q}.", "Write {k} words about {n}.", "Repeat {q} {k} times.",
)  # fmt: skip
LISTS = (
    "Shuffle {l}.", "Mix up {l}.", "Put {l} in random order.", "Which one does not fit: {l}",
    "Find the odd one out: {l}", "Group these words: {l}", "Divide {l} into two groups.",
    "What do {l} have in common?", "Which words of {l} are animals?", "Pair up these words: {l}",
    "How many animals are in {l}?", "How many of {l} can you eat?", "How many letters are in {l}?",
    "How many letters do {l} have together?", "Count the letters of {l}.", "Rhyme these: {l}",
    "Count the letters of each word: {l}", "Which word of {l} has the most letters?",
    "Sort {l} by length.", "Sort {l} by size.", "Sort {l} by their last letters.", "Rate {l}.",
    "Sort these words by their length: {l}", "Sort these from long to short: {l}",
    "Order {l} by weight.", "Order {l} from cheap to expensive.", "Rank {l} by beauty.",
    "Sort {l} from Z to A.", "Sort {l} from small to big.", "Order these by colour: {l}",
    "Remove every second word from {l}.", "Leave out the first of {l}.", "Delete {n} from {l}.",
    "Add {n} to {l}.", "What is the second word of {l}?", "Name the last of {l}.",
    "Does the list {l} contain {n}?", "Is {n} in this list: {l}", "Where in {l} is {n}?",
    "Which word comes after the first in {l}?", "Replace the first of {l} by {n}.",
    "Make a sentence with {l}.", "Write a text with {l}.", "Make up a tale with {l}.",
    "Which of these do you like best: {l}", "Which one is the oldest: {l}", "Choose one: {l}",
    "Which would you buy: {l}", "Draw lots: {l}", "Which is alive: {l}", "Which one can fly: {l}",
    "Which of these is the most expensive: {l}", "Which of these is a fruit: {l}", "Score {l}.",
    "Abbreviate {l}.", "Give me the plurals of {l}.", "Explain each of these words: {l}",
    "Use each of these in a sentence: {l}", "Define each word: {l}", "Spell each of these: {l}",
    "Spell {l} letter by letter.", "Spell each word backwards: {l}", "Write {l} without vowels.",
    "Reverse the letters in all of these: {l}", "Mirror each word of {l}.", "Glue {l} together.",
    "Write only the first letters of {l}.", "Make an acronym of {l}.", "Lower case: {l}",
    "Write each of these with a capital first letter: {l}", "Write {l} in small letters.",
    "Capitalize only the first letters: {l}", "Make {l} lower case.", "lower case please {l}",
    "Write {l} without spaces.", "Put a number before each word: {l}", "Encode {l}.",
    "Put the words {l} in a table.", "Make a crossword with {l}.", "Give each of {l} a colour.",
    "Find rhymes for {l}.", "Give the opposite of each word: {l}", "Find a word like {l}.",
    "What is the next word: {l}", "Which word is missing: {l}", "Guess what I mean: {l}",
    "How often is {n} in {l}?", "Which of {l} begins with {n}?", "Which words begin with s: {l}",
)  # fmt: skip
_PRODUCTS = (
    "What is {k} times {d}?", "Multiply {k} by {d}.", "What is {k} * {d}?", "{k} * {d}",
    "{k} x {d}",
)  # fmt: skip
_LANGUAGES = (
    "French", "German", "Spanish", "Latin", "Italian", "Chinese", "Russian", "Greek", "Japanese",
    "Polish", "Turkish", "Swedish", "Dutch", "Arabic", "Portuguese", "Hindi",
)  # fmt: skip
_KINDS, _WEIGHTS = (_ODD_REQUESTS, LETTERS, WORDS, LISTS), (3, 3, 3, 3)


def odd_request_item(rng: Random) -> Item:
    """A question about words or numbers that the model cannot answer."""
    kind = rng.random()
    word = invented_word(rng) if kind < 0.15 else rng.choice((*NOUNS, *NAMES, *ADJECTIVES))
    other = rng.choice(NOUNS)
    quoted = rng.choice(("{}", "{}", "{}", "'{}'", '"{}"')).format(word)
    numbers = ", ".join(str(rng.randint(1, 99)) for _ in range(rng.randint(3, 6)))
    is_product = rng.random() < 0.04
    requests = _PRODUCTS if is_product else rng.choices(_KINDS, _WEIGHTS)[0]
    prompt = rng.choice(requests).format(
        q=quoted, n=word, an=article(word), l=_listed(rng), m=numbers, b=other, bn=article(other),
        c=word.upper(), u=rng.choice(_LANGUAGES), k=rng.randint(2, 999), d=rng.randint(2, 99),
    )  # fmt: skip
    item = refused(rng, prompt)
    if item.prompt == prompt:
        item = replace(item, prompt=courteous(prompt, rng))
    return replace(item, would_call=("multiply",) if is_product else ())


def _listed(rng: Random) -> str:
    words = word_list(rng, 2, 6)
    kind = rng.random()
    if kind < 0.15:
        return ", ".join(words[:-1]) + " and " + words[-1]
    return " ".join(words) if kind < 0.25 else ", ".join(words)
