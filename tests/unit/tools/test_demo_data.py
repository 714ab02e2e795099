"""The demo model's data: deterministic, split without overlap, right in what it teaches."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tokenizers import Tokenizer
from tools.demo_model import arithmetic, recall, structured, talk, wordplay
from tools.demo_model.example import (
    Item,
    Message,
    exchange,
    is_held_out,
    pieces,
    render_answer,
    render_prompt,
    with_thoughts,
)
from tools.demo_model.mix import (
    ALWAYS_TRAINED,
    Mix,
    after_earlier_turns,
    draw,
    held_out_items,
    one_of_each,
    training_pieces,
)

ROOT = Path(__file__).parents[3]
TEMPLATE = ROOT / "tools" / "demo_model" / "chat_template.jinja"
SHIPPED = ROOT / "src" / "quire" / "demo_model"
MIX = Mix(longest=100)


def items_of_every_kind(rounds: int = 40) -> Iterator[Item]:
    rng = Random(5)
    for _ in range(rounds):
        yield from one_of_each(rng, MIX)


def test_same_seed_gives_the_same_texts() -> None:
    first, second = Random("a"), Random("a")
    for _ in range(200):
        assert training_pieces(first, MIX) == training_pieces(second, MIX)


def test_splits_share_no_key() -> None:
    rng = Random(1)
    trained = {
        item.key
        for item in (draw(rng, MIX, held_out=False) for _ in range(3000))
        if item.skill not in ALWAYS_TRAINED
    }
    held_out = {item.key for item in held_out_items(0, 600, MIX)}
    assert held_out
    assert not trained & held_out


def test_a_swapped_sum_is_in_the_same_split() -> None:
    assert arithmetic._key(12, 345, "+") == arithmetic._key(345, 12, "+")
    assert arithmetic._key(12, 345, "-") != arithmetic._key(345, 12, "-")


@pytest.mark.parametrize("digits", [1, 2, 3])
@pytest.mark.parametrize("negative", [False, True])
def test_equations_hold(digits: int, negative: bool) -> None:
    rng = Random(digits)
    for _ in range(300):
        left, right = arithmetic.arithmetic_item(rng, digits, negative).answer.split(" = ")
        a, sign, b = left.split()
        assert int(right) == (int(a) + int(b) if sign == "+" else int(a) - int(b))
        assert negative or int(right) >= 0


def test_digit_steps_give_the_digits_of_the_result() -> None:
    steps = arithmetic.digit_steps(478, 356, "+").splitlines()
    assert steps == [
        "ones: 8 + 6 = 14, write 4, carry 1",
        "tens: 7 + 5 + 1 = 13, write 3, carry 1",
        "hundreds: 4 + 3 + 1 = 8, write 8, carry 0",
    ]
    assert arithmetic.digit_steps(52, 17, "-").splitlines()[0].endswith("write 5, carry 1")


def test_drills_hold_no_held_out_equation() -> None:
    rng = Random(2)
    for _ in range(200):
        for piece in arithmetic.arithmetic_drill(rng)[1::2]:
            a, sign, b = piece.text.removesuffix("=").split()
            assert not is_held_out(arithmetic._key(int(a), int(b), sign))


def test_words_are_sorted_and_reversed_rightly() -> None:
    rng = Random(3)
    for _ in range(100):
        answer = wordplay.sort_item(rng).answer.split(", ")
        assert answer == sorted(answer)
        item = wordplay.reverse_item(rng)
        asked = item.prompt.split(": ")[1].replace(",", "").split()
        assert item.answer.split(", ") == asked[::-1]


def test_needles_and_memories_are_in_the_prompt() -> None:
    rng = Random(4)
    for _ in range(100):
        for item in (recall.needle_item(rng, 20), recall.memory_item(rng, [])):
            value = item.answer.rstrip(".").removeprefix("You have a pet ").split(" is ")[-1]
            assert value.removeprefix("You live in ") in render_prompt(item)


def test_json_answers_parse() -> None:
    rng = Random(6)
    for _ in range(200):
        assert isinstance(json.loads(structured.json_item(rng).answer), dict)


def test_tool_calls_fit_the_schema_of_an_offered_tool() -> None:
    rng = Random(7)
    for _ in range(300):
        item = structured.tool_call_item(rng)
        body = item.answer.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
        call: dict[str, Any] = json.loads(body)
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in item.tools}
        properties = schemas[call["name"]]["properties"]
        assert set(call["arguments"]) == set(properties)
        for name, value in call["arguments"].items():
            assert isinstance(value, int) == (properties[name]["type"] == "integer")


def test_stories_have_no_open_slot() -> None:
    rng = Random(8)
    for _ in range(200):
        story = talk.story_item(rng).answer
        assert "{" not in story
        assert story[-1] == "."


@pytest.mark.parametrize("thinking", [False, True])
def test_prompts_are_what_the_chat_template_renders(thinking: bool) -> None:
    jinja2 = pytest.importorskip("jinja2")
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(TEMPLATE.read_text())
    for item in items_of_every_kind():
        if item.completion:
            continue
        later = after_earlier_turns(item, Random(9))
        for system, shown in (("", item), ("Be brief.", item), ("", later)):
            history = with_thoughts(shown.history) if thinking else shown.history
            asked = replace(shown, thinking=thinking, system=system, history=history)
            messages: list[Message] = [{"role": "system", "content": system}] if system else []
            messages += history
            if item.prompt:
                messages.append({"role": "user", "content": item.prompt})
            rendered = template.render(
                messages=messages, tools=list(item.tools) or None,
                add_generation_prompt=True, enable_thinking=thinking,
            )  # fmt: skip
            assert rendered == render_prompt(asked)


def test_only_the_answer_is_learned() -> None:
    for item in items_of_every_kind(3):
        prompt, answer = pieces(item)
        assert (prompt.learn, answer.learn) == (False, True)
        assert answer.text.startswith(render_answer(item))


def test_a_text_has_the_tokens_of_its_pieces() -> None:
    """Prompt and answer are tokenized apart in training, and together as an earlier turn."""
    tokenizer = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    rng = Random(10)
    for _ in range(500):
        runs = training_pieces(rng, MIX)
        apart = [encoding.ids for encoding in tokenizer.encode_batch([run.text for run in runs])]
        assert tokenizer.encode("".join(run.text for run in runs)).ids == [*chain(*apart)]


def test_earlier_answers_of_a_chat_are_rendered_as_they_were_learned() -> None:
    rng = Random(11)
    for thinking in (False, True):
        earlier, last = (replace(recall.told_item(rng), thinking=thinking) for _ in range(2))
        learned = "".join(piece.text for piece in pieces(earlier))
        history = with_thoughts(exchange(earlier)) if thinking else exchange(earlier)
        assert render_prompt(replace(last, history=history)).startswith(learned)


def test_the_shipped_template_is_the_one_of_the_tools() -> None:
    assert (SHIPPED / "chat_template.jinja").read_text() == TEMPLATE.read_text()
