"""A matcher that rests in free texts has the masks of one that takes in every token, for structural
tags of all kinds."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher
from tests.fakes.random_replies import tokenizer_of

from quire.errors import QuireError
from quire.structured.free_text.matcher import FreeTextMatcher, free_text_matcher
from quire.structured.matcher import GrammarMatcher
from quire.structured.params import StructuredOutputsParams
from quire.structured.source import grammar_of
from quire.structured.vocabulary import load_vocabulary
from quire.tokenizer.for_model import source_of

LETTERS = "ab<>é"
MARKS = ("<s>", "<ab>", "<|x|>", "a<s>", "<s>b", "<a>")
TOKENIZER = tokenizer_of(["<s>", "<ab>", "<|x|>"], ["<a>", "ba", "é<"])
SOURCE = source_of(TOKENIZER, TOKENIZER.max_token_id + 1, ())
VOCABULARY = load_vocabulary(SOURCE)
Part = dict[str, Any]


def matchers(part: Part) -> tuple[Any, GrammarMatcher] | None:
    """Both; None for a part that is no grammar."""
    tag = {"type": "structural_tag", "format": part}
    spec = StructuredOutputsParams(structural_tag=json.dumps(tag))
    try:
        grammar = LLMatcher(VOCABULARY.tokenizer, grammar_of(spec, VOCABULARY.added), log_level=0)
        whole = GrammarMatcher.start(grammar, SOURCE.vocab_size)
    except QuireError:
        return None
    assert VOCABULARY.texts is not None
    return free_text_matcher(whole.copy(), tag, VOCABULARY.added, VOCABULARY.texts), whole


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


class Writer:
    """Writes structural tags at random, of a few letters and marks, so that many overlap."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def chance(self, share: float) -> bool:
        return self.dice.random() < share

    def some(self, one: Any, most: int) -> list[Any]:
        return [one() for _ in range(self.dice.randint(1, most))]

    def text(self) -> str:
        if self.chance(0.2):
            return self.dice.choice(MARKS)
        return "".join(self.some(lambda: self.dice.choice(LETTERS), 3))

    def const(self) -> Part:
        return {"type": "const_string", "value": self.text()}

    def content(self) -> Part:
        return self.dice.choice(
            [
                {"type": "any_text"},
                {"type": "any_text", "excludes": [self.text()]},
                {"type": "regex", "pattern": "[ab]{0,2}"},
                {"type": "json_schema", "json_schema": {"type": "boolean"}},
                self.const(),
            ]
        )

    def limits(self) -> Part:
        given = {
            "excludes": self.some(self.text, 2),
            "excluded_patterns": [self.dice.choice(["a+b", "<[ab]*>", "b[^a<]*<", "é|a<"])],
            "not_first": [self.text()],
            "not_first_patterns": ["a+<", "b?>"],
        }
        return {name: value for name, value in given.items() if self.chance(0.25)}

    def tag(self, begin: str = "") -> Part:
        return {"begin": begin + self.text(), "content": self.content(), "end": self.text()}

    def triggered(self, depth: int, *, is_last: bool) -> Part:
        triggers = self.some(self.text, 3)

        def tag() -> Part:
            begin = self.dice.choice(triggers)
            const = {"type": "const_string", "value": begin}
            if self.chance(0.5) or not depth:
                return self.dice.choice([const, self.tag(begin), {**self.tag(), "begin": begin}])
            return {"type": "sequence", "elements": [const, self.triggered(0, is_last=False)]}

        part = {"type": "triggered_tags", "triggers": triggers, "tags": self.some(tag, 3)}
        part |= self.limits()
        if not is_last or self.chance(0.2):
            is_bare = {"is_bare": True} if self.chance(0.3) else {}
            return {**part, "at_least_one": True, "stop_after_first": True, **is_bare}
        others = [{}, {"final_tags": [tag()]}, {"at_least_one": True}, {"stop_after_first": True}]
        return part | self.dice.choice(others)

    def part(self, depth: int, *, is_last: bool = True) -> Part:
        kind = self.dice.choice(["free"] * 3 + ["const", "separated", "tag"] + ["many"] * 5)
        if kind == "const":
            return self.const()
        if kind == "tag":
            return {"type": "tag", **self.tag(), "begin": self.dice.choice(["", self.text()])}
        if kind == "separated":
            flags = {"at_least_one": self.chance(0.6), "stop_after_first": self.chance(0.3)}
            tags = {"tags": [self.tag()], "separator": self.text()}
            return {"type": "tags_with_separator", **tags, **flags}
        if kind == "free" or not depth:
            if is_last and self.chance(0.2):
                return {"type": "any_text", **self.limits()}
            return self.triggered(1, is_last=is_last)
        if self.chance(0.4):
            name = self.dice.choice(["optional", "star", "plus"])
            return {"type": name, "content": self.part(depth - 1, is_last=False)}
        if self.chance(0.4):
            return {"type": "or", "elements": self.some(lambda: self.part(depth - 1), 2)}
        elements = [self.part(depth - 1, is_last=False) for _ in range(2)]
        return {"type": "sequence", "elements": [*elements, self.part(depth - 1, is_last=is_last)]}


@pytest.mark.parametrize("begin", range(0, 100, 25))
def test_masks_are_those_of_the_whole_grammar(begin: int) -> None:
    num_steps = num_changed = 0
    for seed in range(begin, begin + 25):
        part = Writer(seed).part(3)
        both = matchers(part)
        if both is None or not isinstance(both[0], FreeTextMatcher):
            continue
        for walk in range(3):
            resting, whole = (one.copy() for one in both)
            for token_id in random_walk(whole, random.Random(walk), 20):
                before = resting.mask
                resting.advance([token_id])
                assert np.array_equal(resting.mask, whole.mask), part
                num_steps += 1
                num_changed += resting.mask is not before
    assert 0 < num_changed < 0.8 * num_steps


def random_walk(whole: GrammarMatcher, dice: random.Random, most: int) -> Any:
    """Yields tokens of these letters and marks that the matcher allows and has taken in."""
    texts = [TOKENIZER.token_text(i) for i in range(TOKENIZER.max_token_id + 1)]
    liked = [i for i, text in enumerate(texts) if set(text) <= {*LETTERS, "s", "|", "x", " "}]
    for _ in range(most):
        allowed = {*np.flatnonzero(np.unpackbits(whole.mask.view(np.uint8), bitorder="little"))}
        allowed -= {*SOURCE.eos_token_ids}
        chosen = [i for i in liked if i in allowed] or sorted(allowed)
        if not chosen:
            return
        token_id = int(dice.choice(chosen))
        try:
            whole.advance([token_id])
        except QuireError:
            return
        yield token_id


JSON = {"type": "json_schema", "json_schema": {}}
TRIGGERED = {
    "type": "triggered_tags",
    "triggers": ["<s>", "<a"],
    "tags": [{"begin": "<a", "content": JSON, "end": "<s>"}],
}


@pytest.mark.parametrize(
    ("part", "texts"),
    [
        (TRIGGERED, {"hello": 0, "é": 2, "<": 1, "b so": 1, " on": 0, "<a": 2, "1": 1}),
        ({"type": "any_text", "excludes": ["abc"]}, {"xab": 2, "xy": 1, "z": 0}),
        ({"type": "any_text", "not_first": ["x"]}, {" y": 2, "x": 0}),
        ({"type": "star", "content": {**TRIGGERED, "at_least_one": True, "stop_after_first": True}},
         {"u": 1, "uvw": 0}),
        ({"type": "sequence", "elements": [{"type": "const_string", "value": "uv"}, TRIGGERED]},
         {"uv": 2, "uvw": 0, "<s": 2}),
    ],
)  # fmt: skip
def test_what_is_taken_in(part: Part, texts: dict[str, int]) -> None:
    """How many tokens the grammar takes in."""
    both = matchers(part)
    assert both is not None
    for text, most in texts.items():
        num_changed = 0
        for token_id in encode(text):
            before = both[0].mask
            both[0].advance([token_id])
            num_changed += both[0].mask is not before
        assert num_changed == most, text


@pytest.mark.parametrize(
    "part",
    [
        {"type": "const_string", "value": "a"},
        JSON,
        {"type": "any_text", "patterns": ["a+"]},
        {"type": "or", "elements": [JSON, {"type": "any_text"}]},
    ],
)
def test_what_has_no_free_text_is_left_as_it_is(part: Part) -> None:
    both = matchers(part)
    assert both is not None
    assert isinstance(both[0], GrammarMatcher)


def test_tokens_at_once_and_copies() -> None:
    both = matchers(TRIGGERED)
    assert both is not None
    resting, whole = both
    tokens = encode("hi <<b you <a1")
    resting.advance(tokens[:6])
    other = resting.copy()
    for token_id in tokens[6:]:
        other.advance([token_id])
    resting.advance(tokens[6:])
    whole.advance(tokens)
    assert np.array_equal(resting.mask, whole.mask)
    assert np.array_equal(other.mask, whole.mask)


def test_what_comes_to_nothing_leaves_the_mask_as_it_was() -> None:
    both = matchers(TRIGGERED)
    assert both is not None
    resting = both[0]
    resting.advance(encode("so"))
    mask = resting.mask
    for text in ("<b", "é"):
        begin, *rest = encode(text)
        resting.advance([begin])
        assert resting.mask is not mask
        resting.advance(rest)
        assert resting.mask is mask
