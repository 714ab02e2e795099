"""The demo model's data: deterministic, split without overlap, right in what it teaches."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tokenizers import Tokenizer
from tools.demo_model import (
    arithmetic,
    odd_requests,
    parallel_calls,
    recall,
    structured,
    talk,
    tool_threads,
    two_steps,
    wordplay,
)
from tools.demo_model.example import (
    Item,
    Message,
    exchange,
    is_held_out,
    pieces,
    render_answer,
    render_prompt,
    render_tool_call,
    turns_asked,
    with_thoughts,
)
from tools.demo_model.mix import (
    ALWAYS_TRAINED,
    Mix,
    after_earlier_turns,
    draw,
    held_out_items,
    one_of_each,
    short_chat,
    training_pieces,
)
from tools.demo_model.thoughts import cut_thought
from tools.demo_model.unseen_phrasings import unseen_phrasing_items
from tools.demo_model.words import ADJECTIVES, NAMES, NOUNS

ROOT = Path(__file__).parents[3]
TEMPLATE = ROOT / "tools" / "demo_model" / "chat_template.jinja"
SHIPPED = ROOT / "src" / "quire" / "demo_model"
MIX = Mix(longest=100)
_KNOWN = {word.lower() for word in (*NOUNS, *NAMES, *ADJECTIVES)}


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


@pytest.mark.parametrize(
    ("kind", "answer"),
    [("reverse", "fox, bear, apple"), ("sort", "apple, bear, fox"), ("upper", "APPLE, BEAR, FOX"),
     ("count", "There are 3 words.")],
)  # fmt: skip
def test_answers_about_words(kind: str, answer: str) -> None:
    assert wordplay.answer_to(kind, ["apple", "bear", "fox"]) == answer


def test_a_request_about_words_has_the_words_of_its_answer() -> None:
    rng = Random(3)
    makers = (wordplay.reverse_item, wordplay.sort_item, wordplay.upper_item, wordplay.copy_item)
    for _ in range(100):
        for item in (make(rng) for make in makers):
            for word in item.answer.replace(",", " ").split():
                assert word.lower() in item.prompt.lower()


def test_phrasings_held_out_are_not_trained_on() -> None:
    rng = Random(12)
    held_out = {item.prompt for item in unseen_phrasing_items(0, each=1)}
    assert len(held_out) >= 40
    slots = {_as_phrasing(prompt) for prompt in held_out}
    makers = (wordplay.reverse_item, wordplay.sort_item, wordplay.count_item, wordplay.upper_item,
              wordplay.copy_item, odd_requests.odd_request_item, talk.refusal_item)  # fmt: skip
    for _ in range(4000):
        for make in makers:
            item = make(rng)
            assert _as_phrasing(item.prompt) not in slots
            if item.skill == "words, new phrasings":
                assert is_held_out(item.key)


def _as_phrasing(prompt: str) -> str:
    """The wording: without case, punctuation, and the words that it is about."""
    words = re.findall(r"[a-z]+", prompt.lower())
    return " ".join(word for word in words if word not in _KNOWN)


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
    for _ in range(100):
        for make in (
            structured.tool_call_item, parallel_calls.parallel_item, two_steps.two_step_item,
            lambda rng: tool_threads.tool_thread(rng, short_chat),
        ):  # fmt: skip
            item = make(rng)
            for turn in turns_asked(item):
                for call in calls_of(turn.answer):
                    assert_fits(call, item.tools)


def calls_of(answer: str) -> list[dict[str, Any]]:
    """The calls of a reply."""
    return [json.loads(call) for call in re.findall(r"<tool_call>\n(.*)\n</tool_call>", answer)]


def assert_fits(call: dict[str, Any], tools: tuple[Message, ...]) -> None:
    (schema,) = (
        tool["function"]["parameters"] for tool in tools
        if tool["function"]["name"] == call["name"]
    )  # fmt: skip
    properties = schema["properties"]
    assert set(call["arguments"]) <= set(properties)
    assert set(call["arguments"]) == set(schema.get("required", properties))
    for name, value in call["arguments"].items():
        assert isinstance(value, int) == (properties[name]["type"] == "integer")


def test_parallel_requests_have_two_or_three_calls_with_the_values_of_the_request() -> None:
    rng = Random(13)
    for _ in range(200):
        item = parallel_calls.parallel_item(rng)
        calls = calls_of(item.answer)
        assert len(calls) in (2, 3)
        assert item.answer == "\n".join(
            render_tool_call(call["name"], call["arguments"]) for call in calls
        )
        for call in calls:
            for value in call["arguments"].values():
                assert str(value) in item.prompt


def test_the_replies_of_parallel_calls_are_all_in_the_answer() -> None:
    rng = Random(14)
    for _ in range(200):
        item = parallel_calls.parallel_reply_item(rng)
        results = [turn["content"] for turn in item.history if turn["role"] == "tool"]
        assert len(results) == len(item.history[1]["tool_calls"])
        for number in re.findall(r"\d+", " ".join(results)):
            assert number in item.answer


def test_a_task_of_two_steps_has_one_call_in_each_of_two_turns() -> None:
    rng = Random(15)
    uses_result = 0
    for _ in range(200):
        item = two_steps.two_step_item(rng)
        first, second, last = turns_asked(item)
        assert [len(calls_of(turn.answer)) for turn in (first, second, last)] == [1, 1, 0]
        assert render_prompt(second).startswith(render_prompt(first) + first.answer)
        values = [str(one) for one in calls_of(second.answer)[0]["arguments"].values()]
        said = second.history[-1]["content"]
        uses_result += any(one not in item.history[0]["content"] and one in said for one in values)
    assert uses_result > 50


def test_an_unneeded_tool_is_none_that_would_serve() -> None:
    rng = Random(16)
    product = Item("outside its skills", "k", "3 * 4", "No.", would_call=("multiply",))
    for _ in range(200):
        item = structured.unneeded_tool_item(rng, product)
        assert "multiply" not in {tool["function"]["name"] for tool in item.tools}


def test_a_cut_thought_is_not_learned_and_the_answer_after_it_is() -> None:
    rng = Random(17)
    tokenizer = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    for number in range(200):
        plain = arithmetic.arithmetic_item(rng, 3)
        cut = cut_thought(plain.thought, rng)
        assert f"\n{plain.thought}\n".startswith(cut)
        item = replace(plain, thinking=True, cut_thought=cut)
        prompt, answer = pieces(item)
        begun = render_prompt(replace(item, cut_thought=None))
        assert (prompt.text, prompt.learn) == (f"{begun}<think>{cut}</think>", False)
        assert (answer.text, answer.learn) == (f"\n\n{item.answer}<|im_end|>", True)
        if number < 50:
            apart = [*tokenizer.encode(prompt.text).ids, *tokenizer.encode(answer.text).ids]
            assert tokenizer.encode(prompt.text + answer.text).ids == apart


def test_where_thoughts_are_dropped_only_the_last_reply_is_learned() -> None:
    item = replace(two_steps.two_step_item(Random(18)), thinking=True)
    kept = replace(item, history=with_thoughts(item.history))
    assert [piece.learn for piece in pieces(item)] == [False, True]
    assert [piece.learn for piece in pieces(kept)] == [False, True] * 3
    assert "".join(piece.text for piece in pieces(kept)).startswith(render_prompt(kept))


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
        runs, turns = pieces(item), turns_asked(item)
        assert [run.learn for run in runs] == [False, True] * len(turns)
        for run, turn in zip(runs[1::2], turns, strict=True):
            assert run.text.startswith(render_answer(turn))


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
