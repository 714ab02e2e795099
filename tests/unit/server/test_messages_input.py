"""Arguments of a call as an object, whatever the model writes and however it arrives."""

from __future__ import annotations

import json
import random

import pytest
from replies import divisions

from quire.server.conversation.argument_text import InputText, object_of


def passed_on(*pieces: str, is_complete: bool = True) -> str:
    """What a client gets of arguments that come in these pieces."""
    text = InputText()
    passed = "".join(text.feed(piece) for piece in pieces)
    return passed + (text.close() if is_complete else "")


def object_from(text: str) -> object:
    """The object that every division of the text gives."""
    whole = passed_on(text)
    for pieces in divisions(text):
        assert passed_on(*pieces) == whole, pieces
    return json.loads(whole)


@pytest.mark.parametrize(
    "value",
    [
        {}, {"a": {}}, {"a": []}, {"a": [[], {}, [1]]}, {"": ""}, {"a": "x", "b": [1, -2.5e3, 0]},
        {"a": True, "b": False, "c": None}, {"é": "漢字🙂", "q": 'a"b\\c/d\n\t\x00'},
        {"code": 'def f():\n\treturn "}{][,:"\n'},
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_ascii", [False, True])
@pytest.mark.parametrize("indent", [None, 2])
def test_json_stays_what_it_is(value: object, is_ascii: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    assert object_from(text) == value
    assert object_from(f" \n{text} \n") == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": "x\ny\tz\x01"}', {"a": "x\ny\tz\x01"}),
        ('{"a": "it\\\'s"}', {"a": "it's"}),
        ('{"a": "\\d+\\u12"}', {"a": "\\d+\\u12"}),
        ('{"a": "\\ud83d"}', {"a": "�"}),
        ('{"a": "\\ud83d\\n\\ude42"}', {"a": "�\n�"}),
        ('{"a": "\\ud83d\\ud83d\\ude42"}', {"a": "�🙂"}),
        ('{"a\nb": 1}', {"a\nb": 1}),
        ('{"a": 1,}', {"a": 1}),
        ('{"a": [1,], }', {"a": [1]}),
    ],
)
def test_what_has_one_meaning_is_repaired(text: str, value: object) -> None:
    assert object_from(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}), ("  ", {}), ("null", {}), ("[1]", {}), ('"a"', {}), ("}", {}), ("{", {}),
        ("{a: 1}", {}), ('{"a" 1}', {}), ('{"a": }', {}), ('{"a": x}', {}), ('{"a": 01}', {}),
        ('{"a": .5}', {}), ('{"a": 1 "b": 2}', {"a": 1}), ('{"a": 1]', {"a": 1}),
        ('{"a": [1, x], "b": 2}', {"a": [1]}), ('{"a": {"b": 1}, c}', {"a": {"b": 1}}),
        ('{"a": True}', {}), ('{"a": "x"', {"a": "x"}), ('{"a": "x', {"a": "x"}),
        ('{"a": 1} {"b": 2}', {"a": 1}), ('{"a": 1', {}),
    ],
)  # fmt: skip
def test_what_follows_a_mistake_is_left_out(text: str, value: object) -> None:
    assert object_from(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}), ("{", {}), ('{"a', {}), ('{"a": "x', {}), ('{"a": "x"', {"a": "x"}),
        ('{"a": 12, "b', {"a": 12}), ('{"a": ["x", "y', {"a": ["x"]}),
        ('{"a": {"b": "x', {"a": {}}), ('{"a": [12, 3', {"a": [12]}),
        ('{"a": "x\\', {}), ('{"a": 1, "b": "\\ud83d', {"a": 1}),
    ],
)  # fmt: skip
def test_of_a_call_that_was_cut_what_is_complete_counts(text: str, value: object) -> None:
    passed = passed_on(text, is_complete=False)
    assert not passed or passed.startswith("{")
    assert json.loads(object_of(passed)) == value


def test_texts_at_random_make_objects() -> None:
    dice = random.Random(5)
    parts = ['{', '}', '[', ']', '"', '\\', ',', ':', 'a', '1', ' ', '\n', '"k":', 'true',
             '\\u00e9',
             '\\ud83d', "'", '-', '.5', 'é', '{"a":', '"x"']  # fmt: skip
    for _ in range(3000):
        text = "".join(dice.choices(parts, k=dice.randrange(1, 14)))
        if dice.random() < 0.7:
            text = '{"a":' + text
        whole = passed_on(text)
        assert isinstance(json.loads(whole), dict), text
        assert passed_on(*text) == whole, text
        cut = passed_on(text, is_complete=False)
        assert isinstance(json.loads(object_of(cut)), dict), text


@pytest.mark.parametrize("text", ['{"a":' * 5000, "[" * 5000, '{"a":' + "[" * 5000])
def test_no_depth_is_too_much(text: str) -> None:
    assert isinstance(json.loads(passed_on(text)), dict)
    assert passed_on(*text) == passed_on(text)


@pytest.mark.parametrize("text", ['{"' + "k" * 4000 + '": 1}', '{"a": ' + "1" * 4000 + "}"])
def test_a_key_or_number_without_end_is_a_mistake(text: str) -> None:
    assert json.loads(passed_on(text)) == {}
    assert passed_on(*text) == passed_on(text)


def test_a_long_string_is_read_once() -> None:
    """Each character is passed on when it comes, and kept no longer."""
    text = InputText()
    text.feed('{"a": "')
    for _ in range(2000):
        assert text.feed("x" * 50) == "x" * 50
        assert len(text._text) <= 50
