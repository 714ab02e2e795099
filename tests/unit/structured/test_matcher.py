"""GrammarMatcher: the mask is a function of the grammar and the tokens taken in."""

from __future__ import annotations

import numpy as np
import pytest
from small_vocabulary import VOCAB_SIZE, allowed, ids, source

from quire.errors import GrammarError, IntegrityError
from quire.structured import limits
from quire.structured.compile import GrammarCompiler
from quire.structured.matcher import GrammarMatcher, without
from quire.structured.params import StructuredOutputsParams

IDS = ids()
END = {"<eos>", "<end>"}


def start(**spec: object) -> GrammarMatcher:
    compiler = GrammarCompiler(source)
    return compiler.submit(StructuredOutputsParams(**spec)).result().start.copy()  # type: ignore[arg-type]


def test_a_text_may_end_where_its_grammar_may() -> None:
    matcher = start(regex="ab*")
    assert allowed(matcher.mask) == {"a"}
    matcher.advance([IDS["a"]])
    assert allowed(matcher.mask) == {"b", *END}
    matcher = start(choice=["yes", "no"])
    matcher.advance([IDS["y"], IDS["e"]])
    assert allowed(matcher.mask) == {"s"}
    matcher.advance([IDS["s"]])
    assert allowed(matcher.mask) == END


def test_copies_go_their_own_ways() -> None:
    matcher = start(choice=["yes", "no"])
    other = matcher.copy()
    matcher.advance([IDS["n"]])
    other.advance([IDS["yes"]])
    assert allowed(matcher.mask) == {"o"}
    assert allowed(other.mask) == END


def test_the_way_does_not_matter() -> None:
    """Neither how the text is cut into calls, nor what other copies did before."""
    template = start(json_object=True)
    one, other = template.copy(), template.copy()
    tokens = [IDS[text] for text in '{"a":1']
    one.advance(tokens)
    for token_id in tokens:
        template.copy().advance([IDS["{"]])
        other.advance([token_id])
    assert np.array_equal(one.mask, other.mask)


@pytest.mark.parametrize("token_id", [IDS["x"], IDS["<eos>"], VOCAB_SIZE - 1])
def test_a_token_that_is_not_allowed_is_an_error(token_id: int) -> None:
    matcher = start(choice=["yes", "no"])
    with pytest.raises(IntegrityError, match="refuses a token"):
        matcher.advance([token_id])


def test_what_takes_too_much_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LEXER_STATES", 300)
    matcher = start(regex="(a|b)*a(a|b){14}c")
    random = np.random.default_rng(0)

    def go_on() -> None:
        for _ in range(2000):
            matcher.advance([IDS["ab"[random.integers(2)]]])

    with pytest.raises(GrammarError, match="too much to follow"):
        go_on()


def test_a_grammar_without_a_way_on_is_an_error_in_words() -> None:
    matcher = start(grammar='root ::= "a" x | "b"\nx ::= x "c"')
    with pytest.raises(GrammarError, match="no text that begins like this output matches"):
        matcher.advance([IDS["a"]])


def test_without() -> None:
    matcher = start(regex="ab*")
    matcher.advance([IDS["a"]])
    left = without(matcher.mask, (IDS["<eos>"], IDS["<end>"], IDS["y"]))
    assert allowed(left) == {"b"}
    assert allowed(matcher.mask) == {"b", *END}
    assert left.dtype == np.int32
