"""The score counts what it says: whole tasks, refusals where they are right, thoughts cut short."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from tools.demo_model import score, two_steps, unseen_phrasings
from tools.demo_model.example import Item, render_prompt, turns_asked
from tools.demo_model.facts import REFUSAL

PLAIN = Item("copy", "key", "Say a.", "a")


def test_an_honest_refusal_is_right_where_the_item_says_so() -> None:
    odd = replace(PLAIN, may_decline=True)
    assert score.is_right(odd, "a")
    assert score.is_right(odd, f" {REFUSAL}\n")
    assert not score.is_right(odd, "b")
    assert not score.is_right(PLAIN, REFUSAL)


def test_a_thinking_answer_thinks_unless_a_budget_has_ended_the_thought() -> None:
    thinking = replace(PLAIN, thinking=True)
    assert score.is_right(thinking, "<think>\nHm.\n</think>\n\na")
    assert not score.is_right(thinking, "a")
    cut = replace(thinking, cut_thought="\nHm")
    assert render_prompt(cut).endswith("<think>\nHm</think>")
    assert score.is_right(cut, "\n\na")


@pytest.mark.parametrize("wrong", [None, 0, 1, 2])
def test_a_task_is_right_if_all_its_replies_are(
    monkeypatch: pytest.MonkeyPatch, wrong: int | None
) -> None:
    task = two_steps.two_step_item(Random(1))
    answers = {render_prompt(turn): turn.answer for turn in turns_asked(task)}
    if wrong is not None:
        answers[[*answers][wrong]] = "nonsense"

    def generate(prompts: Sequence[str]) -> list[str]:
        return [answers.get(prompt, "a") for prompt in prompts]

    monkeypatch.setattr(score, "rows", lambda *_: [("tasks", [PLAIN, task])])
    (row,) = score.score(generate, 1, 0)
    assert (row.right, row.asked, len(row.wrong)) == (2 - (wrong is not None), 2, wrong is not None)


def test_rows_can_be_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score, "rows", lambda *_: [("copy", [PLAIN]), ("tasks", [PLAIN])])
    chosen = score.score(lambda prompts: ["a"] * len(prompts), 1, 0, only="task")
    assert [row.name for row in chosen] == ["tasks"]


def test_requests_by_hand_have_words_and_answers() -> None:
    items = unseen_phrasings.unseen_phrasing_items(0, each=1)
    assert len(items) >= 40
    assert not [item.prompt for item in items if "{" in item.prompt]
    assert {item.may_decline for item in items if item.answer != REFUSAL} == {True}
