"""Scores the shipped model on held-out items: `python -m tools.demo_model.score`.

Answers are decoded greedily and count as right only if they are the expected text, character for
character; when thinking is enabled the text after `</think>` counts. A task of two steps is right
if both its calls and its answer are.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from tools.demo_model.engines import ENGINES, Generate
from tools.demo_model.example import (
    Item,
    is_held_out,
    render_prompt,
    turns_asked,
    with_thoughts,
)
from tools.demo_model.facts import REFUSAL
from tools.demo_model.mix import (
    ALWAYS_TRAINED,
    OPEN_ENDED,
    Mix,
    after_earlier_turns,
    one_of_each,
)
from tools.demo_model.recall import needle_completion, needle_item
from tools.demo_model.thoughts import cut_thought
from tools.demo_model.unseen_phrasings import unseen_phrasing_items

NEEDLE_SENTENCES = {"100": 7, "500": 38, "1,000": 77, "2,000": 154}
_MODEL = Path(__file__).parents[2] / "src" / "quire" / "demo_model"


@dataclass(frozen=True)
class Score:
    """Number of right answers of one row of items, and the errors."""

    name: str
    right: int
    asked: int
    wrong: tuple[tuple[str, str, str], ...]


def held_out_by_skill(per_skill: int, seed: int) -> dict[str, list[Item]]:
    """`per_skill` different held-out items of every skill that has them, as plain chats."""
    rng, mix = Random(f"score {seed}"), Mix(longest=200)
    found: dict[str, dict[str, Item]] = {}
    for _ in range(20 * per_skill):
        for item in one_of_each(rng, mix):
            if item.skill in (*OPEN_ENDED, *ALWAYS_TRAINED, "needle", "needle, completion"):
                continue
            items = found.setdefault(item.skill, {})
            if is_held_out(item.key) and len(items) < per_skill:
                items.setdefault(render_prompt(item), item)
    return {skill: list(items.values()) for skill, items in sorted(found.items()) if items}


def needles(sentences: int, count: int, seed: int) -> list[Item]:
    """Held-out needles in that many sentences; the secret words were never asked in training."""
    rng = Random(f"needle {seed} {sentences}")
    found: list[Item] = []
    while len(found) < count:
        make = needle_completion if rng.random() < 0.25 else needle_item
        item = make(rng, sentences)
        if is_held_out(item.key):
            found.append(item)
    return found


def rows(per_skill: int, seed: int) -> Iterator[tuple[str, list[Item]]]:
    """Every row of the score table with its items."""
    plain = held_out_by_skill(per_skill, seed)
    yield from plain.items()
    for length, sentences in NEEDLE_SENTENCES.items():
        yield f"needle, {length} tokens", needles(sentences, max(20, per_skill // 2), seed)
    chats = [item for items in plain.values() for item in items if not item.completion]
    thinking = Random(seed).sample(chats, min(len(chats), 2 * per_skill))
    yield "thinking enabled, all skills", [replace(item, thinking=True) for item in thinking]
    rng = Random(f"turns {seed}")
    later = [after_earlier_turns(item, rng) for item in rng.sample(chats, len(thinking))]
    yield "after earlier turns, all skills", later
    yield "after earlier thoughts, all skills", [think_aloud(item) for item in later]
    yield (
        "thought cut by a budget, all skills",
        [
            replace(item, thinking=True, cut_thought=cut_thought(item.thought, rng))
            for item in rng.sample(chats, len(thinking))
        ],
    )
    yield "words, phrasings by hand", unseen_phrasing_items(seed)


def think_aloud(item: Item) -> Item:
    """With thinking enabled in this turn and in all before it."""
    return replace(item, thinking=True, history=with_thoughts(item.history))


def is_right(item: Item, text: str) -> bool:
    """Whether the answer is an expected one; a thinking answer must think first."""
    if item.thinking and item.cut_thought is None:
        thought, mark, text = text.partition("</think>")
        if not mark or not thought.startswith("<think>"):
            return False
    expected = (item.answer, REFUSAL) if item.may_decline else (item.answer,)
    return text.strip() in [one.strip() for one in expected]


def score(generate: Generate, per_skill: int, seed: int, only: str = "") -> Iterator[Score]:
    """The rows of the table, one after the other. All replies of a task have to be right.

    With `only`, the rows whose name contains this text.
    """
    for name, items in rows(per_skill, seed):
        if only not in name:
            continue
        turns = [turn for item in items for turn in turns_asked(item)]
        texts = iter(generate([render_prompt(turn) for turn in turns]))
        wrong: list[tuple[str, str, str]] = []
        for item in items:
            got = [(turn, next(texts)) for turn in turns_asked(item)]
            wrong += [
                (render_prompt(turn)[-300:], turn.answer, text)
                for turn, text in got
                if not is_right(turn, text)
            ][:1]
        yield Score(name, len(items) - len(wrong), len(items), tuple(wrong))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=_MODEL, help="the model directory")
    parser.add_argument("--engine", choices=sorted(ENGINES), default="transformers")
    parser.add_argument("--per-skill", type=int, default=100, help="items per row")
    parser.add_argument("--seed", type=int, default=0, help="choice of the items")
    parser.add_argument("--only", default="", help="the rows whose name contains this text")
    parser.add_argument("--wrong", type=Path, help="write the wrong answers to this file")
    options = parser.parse_args()
    failures = {}
    print("| held-out items | right | asked | exact match |\n|---|---|---|---|", flush=True)
    generate = ENGINES[options.engine](options.model)
    for row in score(generate, options.per_skill, options.seed, options.only):
        share = f"{100 * row.right / row.asked:.1f} %"
        print(f"| {row.name} | {row.right} | {row.asked} | {share} |", flush=True)
        failures[row.name] = row.wrong
    if options.wrong:
        options.wrong.write_text(json.dumps(failures, indent=1))


if __name__ == "__main__":
    main()
