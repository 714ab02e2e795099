"""Masks of replies that may call tools are those of the whole grammar at every step, though nothing
is computed while the text is free."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from tests.fakes.random_replies import tokenizer_of
from tests.unit.parsers.test_random_replies import FORMATS, KINDS, MARK, TOOLS, UNHELD, format_of

from quire.parsers.call_rules import CallRules
from quire.parsers.constraint import reply_constraint
from quire.structured.compile import GrammarCompiler
from quire.structured.config import StructuredOutputsConfig
from quire.structured.free_text.matcher import FreeTextMatcher
from quire.structured.matcher import GrammarMatcher
from quire.structured.params import StructuredOutputsParams
from quire.structured.trials.trial import GrammarTrial
from quire.tokenizer import Tokenizer
from quire.tokenizer.for_model import source_of

WORDS = ("Hello, é", "\U0001f600 a", " some text\n", "<a>", '{"a": 1}', "[")


class Both:
    """A matcher that rests in free texts, and one that takes in every token."""

    def __init__(self, tokenizer: Tokenizer, spec: StructuredOutputsParams) -> None:
        source = source_of(tokenizer, tokenizer.max_token_id + 1, ())
        self.tokenizer, self.ends = tokenizer, source.eos_token_ids
        self.resting = GrammarCompiler(lambda: source).submit(spec).result().start.copy()
        assert isinstance(self.resting, FreeTextMatcher)
        self.whole: GrammarMatcher = self.resting._matcher.copy()

    def advance(self, token_id: int) -> None:
        """Fails unless both allow the same then."""
        self.whole.advance([token_id])
        self.resting.advance([token_id])
        assert np.array_equal(self.resting.mask, self.whole.mask)

    def walk(self, seed: int, texts: list[str], most: int) -> None:
        """Chooses at random among what is allowed, but often begins one of these texts."""
        dice, ahead = random.Random(seed), list[int]()
        for _ in range(most):
            bits = np.unpackbits(self.whole.mask.view(np.uint8), bitorder="little")
            if not ahead and (dies := dice.random()) < 0.4:
                text = dice.choice(texts if dies < 0.2 else WORDS)
                ahead = self.tokenizer.encode(text, add_special_tokens=False)
                ahead = ahead[: dice.choice([1, 2, 99])]
            if ahead and bits[ahead[0]]:
                chosen = ahead.pop(0)
            else:
                ahead, allowed = [], np.flatnonzero(bits).tolist()
                chosen = dice.choice([one for one in allowed if one not in self.ends] or allowed)
            self.advance(chosen)
            if chosen in self.ends:
                return


@lru_cache(maxsize=4)
def tokenizer(name: str, kind: str) -> Tokenizer:
    texts = format_of(name, kind).literal_texts(has_tools=True)
    marks = [mark for text in texts for mark in MARK.findall(text)]
    return tokenizer_of(marks if kind == "special" else (), marks if kind == "ordinary" else ())


def both(name: str, kind: str, **fields: Any) -> Both | None:
    """None for a format that is not held to a grammar."""
    own = tokenizer(name, kind)
    trial = GrammarTrial(StructuredOutputsConfig(), own.max_token_id + 1, lambda: own.added_texts)
    is_reasoning = fields.pop("is_reasoning", False)
    rules = CallRules(TOOLS, "auto", **fields)
    format = format_of(name, kind)
    spec = reply_constraint(format, rules, trial.checked, is_reasoning=is_reasoning)
    return None if spec is None else Both(own, trial.checked(spec))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_masks_are_those_of_the_whole_grammar(name: str, kind: str) -> None:
    texts = [text for text in format_of(name, kind).literal_texts(has_tools=True) if text]
    for seed in range(2):
        fields = {"is_reasoning": seed % 2 == 1 and kind != "none", "is_parallel": seed < 1}
        one = both(name, kind, **fields)
        if one is None:
            assert name in UNHELD
            return
        one.walk(seed, texts, 30)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "llama3_json", "mistral", "openai"])
def test_free_text_costs_no_grammar(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the reasoning nor in the answer, also behind what only looked like a call."""
    taken = list[int]()
    whole = GrammarMatcher.advance

    def counted(self: GrammarMatcher, token_ids: list[int]) -> None:
        taken.extend(token_ids)
        whole(self, token_ids)

    monkeypatch.setattr(GrammarMatcher, "advance", counted)
    format, own = format_of(name, kind), tokenizer(name, kind)
    final = "<|channel|>final<|message|>" if name == "openai" else ""
    pieces = [
        (f"{final}Hello", 1),
        (", there is no call. " * 20, 0),
        ("{ <tool [, ", 12),
        ("so " * 30, 0),
    ]
    if (tags := format.reasoning) is not None:
        pieces = [(f"{tags.begin}", 99), ("Hm, " * 20, 0), (tags.end, 99), *pieces]
    one = both(name, kind)
    assert one is not None
    for text, most in pieces:
        taken.clear()
        if most == 1:
            most = len(own.encode(final, add_special_tokens=False)) + 2
        one.resting.advance(own.encode(text, add_special_tokens=False))
        assert len(taken) <= most, (text, len(taken))
