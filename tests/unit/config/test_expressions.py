"""Regular expressions of files: as Python's `re` matches them, in limited time."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.config.checkpoint.expressions import Expressions
from quire.errors import CheckpointError

NAME = "model.layers.11.mlp.experts.3.down_proj"
PUBLISHED = [
    r".*lm_head", r"model\.layers\.\d+\..*", r"^(?!.*lm_head).*", r".*mlp.gate$", r".*gate$",
    r"^(?!.*\.mlp\.experts(?:\.|$)).*$", r"(?!.*experts).*down", r".*self_attn\.(q|k|v|o)_proj$",
    r"(?!.*(?:mtp|stages)\.\d+\.).*(?:mlp|ffn)\.experts\.\d+\.(?:gate_proj|down_proj|w[123])$",
    r"^((?!lm_head).)*$", r"(?:(?!experts).)*\.gate$", r"(?:.(?!gate))*", r"[^\W\d]+[.\-_]\B",
    r".*model.layers.[0-9]{2}.*", r"model\.layers\.(1[0-5]|[2-9])\.", r"visual.*", r".*\bmlp\b",
]  # fmt: skip
HOSTILE = {
    "optional parts": ".?" * 90 + "X",
    "repeats of repeats": r"([a-z0-9._]+)+\$X",
    "alternatives": r"(a|b|ab|[a-z.]|\w)*$" + "X",
    "empty repeats": "((((.*)*)*)*)*X",
}
REFUSED = {
    "a backreference": (r"(.)\1", "must not have groupref"),
    "a flag": ("(?s).", r"must not have flags such as \(\?i\)"),
    "lookbehind": ("(?<!a)b", "must not have lookbehind"),
    "an open class": ("[", "is not valid: unterminated character set"),
    "many groups in each other": ("(" * 1000 + ")" * 1000, "has too many groups in each other"),
    "a large count": ("a{1,99999999999}", "is not valid: the repetition number is too large"),
    "many characters": ("a" * 5000, "must have at most 4096 characters"),
    "a count of nothing": ("(?:(){4000000000})b", "takes too long to match"),
    "counts of counts": ("(((a?){100}){100}){100}", "takes too long to match"),
}


@pytest.mark.parametrize("expression", PUBLISHED)
def test_published_forms_match_as_in_python(expression: str) -> None:
    expressions = Expressions("file")
    for name in (NAME, "lm_head", "model.visual.gate", "model.layers.2.self_attn.q_proj", ""):
        assert expressions.match(expression, name) == (re.match(expression, name) is not None)


_CHARS = "ab.\n_1"
_ONE = st.sampled_from(["a", "b", ".", r"\.", "[ab]", "[^a]", r"\d", r"\w", r"\W", r"\s", "1"])
_PLACE = st.sampled_from(["^", "$", r"\b", r"\Z", "(?=a)", "(?!.*b)"])
_TIMES = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,2}", "*?", "{2,}"])
_EXPRESSION = st.recursive(
    st.one_of(st.tuples(_ONE, _TIMES).map("".join), _PLACE),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(inner, inner, _TIMES).map(lambda it: f"(?:{it[0]}|{it[1]}){it[2]}"),
        inner.map(lambda one: f"(?={one})"),
    ),
    max_leaves=6,
)


@given(_EXPRESSION, st.text(_CHARS, max_size=6))
def test_any_expression_matches_as_in_python(expression: str, name: str) -> None:
    expressions = Expressions("file")
    assert expressions.match(expression, name) == (re.match(expression, name) is not None)
    ending = re.compile(rf"(.*\.)?({expression})\Z", re.DOTALL if "\n" in name else 0)
    if not re.search(r"[\^b\n]", expression + name):  # PEFT's form differs at these
        assert expressions.match_end(expression, name) == (ending.match(name) is not None)


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.timeout(20)
def test_no_expression_takes_exponential_time(kind: str) -> None:
    assert not Expressions("file").match(HOSTILE[kind], "ab" * 200)
    assert not Expressions("file").match_end(HOSTILE[kind], "ab." * 200)


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_supported_is_named(kind: str) -> None:
    expression, message = REFUSED[kind]
    with pytest.raises(CheckpointError, match=f"^file: the expression .* {message}"):
        Expressions("file").match(expression, "ab" * 200)


def test_all_matches_together_take_limited_time() -> None:
    expressions = Expressions("file")
    names = (f"{'a' * 100}{number}" for number in range(1000))
    with pytest.raises(CheckpointError, match="takes too long"):
        all(expressions.match("((a?){30}){30}", name) for name in names)
    assert expressions.match(".*9", "a9")  # what takes few steps is still matched


def test_names_and_expressions_are_bounded() -> None:
    with pytest.raises(CheckpointError, match="a name must have at most 1000 characters"):
        Expressions("file").match("a.*", "a" * 1001)
    many = Expressions("file")
    with pytest.raises(CheckpointError, match="file must have at most 4096 regular expressions"):
        any(many.match(f"b{number}", "a") for number in range(5000))


def test_every_step_is_short() -> None:
    large = "[" + "".join(chr(0x3000 + 2 * number) for number in range(4000)) + "]*x"
    wide = "".join(chr(0x4E00 + number) for number in range(1000))
    expressions = Expressions("file")
    for first in range(100):  # members are not compared one by one
        assert not expressions.match(large, wide[first:] + wide[:first])
    for number in range(2000):  # a lookahead is followed once, not once for each position
        assert not expressions.match("(?:(?!lm_head).)*X", f"{'a.' * 50}{number}")


def test_the_parser_gives_no_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Expressions("file").match("[[a]", "[")
        assert Expressions("file").match("[a||b&&c]", "a")


def test_many_expressions_take_limited_time() -> None:
    """Each of them is quick, and none is counted much; all of them for all names are."""
    expressions = Expressions("file")
    many = [f"[Z{chr(0x4E00 + number)}]{'.?' * 25}" for number in range(1000)]
    with pytest.raises(CheckpointError, match="takes too long to match"):
        any(expressions.match(one, f"model.{name}") for name in range(200) for one in many)
    few = Expressions("file")  # what published files have, for the names of a large model
    for name in range(3000):
        assert not few.match(PUBLISHED[5], f"model.layers.1.mlp.experts.{name}")
        assert not any(few.match(rf"model\.layers\.7{one}\..*", NAME) for one in range(10))


def test_the_characters_of_all_expressions_are_bounded() -> None:
    """Each class of characters takes time before anything is matched."""
    expressions = Expressions("file")
    classes = (f"[!-{chr(0x4E00 + number)}]" * 800 for number in range(100))
    with pytest.raises(CheckpointError, match="together must have at most 65536 characters"):
        any(expressions.match(one, "") for one in classes)
