"""Held-out scores during training, without decoding.

A greedy answer is right exactly when every token of the right answer is the most likely one
after the tokens before it, so one forward pass over prompt and answer gives the score.
"""

from collections import defaultdict
from functools import cache
from random import Random

import torch
from tokenizers import Tokenizer
from tools.demo_model.batches import Encoded, collate, encode
from tools.demo_model.example import Item, is_held_out, pieces
from tools.demo_model.mix import OPEN_ENDED, Mix, held_out_items
from tools.demo_model.model import DemoModel
from tools.demo_model.recall import needle_item

_NEEDLES = 8
_NEEDLE_SENTENCES = 155


def _needles() -> list[Item]:
    found: list[Item] = []
    rng = Random("held-out needles")
    while len(found) < _NEEDLES:
        item = needle_item(rng, _NEEDLE_SENTENCES)
        if is_held_out(item.key):
            found.append(item)
    return found


@cache
def _items(count: int) -> tuple[tuple[str, Item], ...]:
    named = [(item.skill + (", thinking" if item.thinking else ""), item)
             for item in held_out_items(0, count, Mix(longest=300))
             if item.skill not in OPEN_ENDED]  # fmt: skip
    return (*named, *(("needle, 2,000 tokens", item) for item in _needles()))


def is_right(model: DemoModel, text: Encoded) -> bool:
    """Whether greedy decoding would give the answer."""
    batch = collate([text])
    best = model(batch.ids, batch.positions).argmax(-1)
    return bool((best == batch.targets).all())


def held_out_report(model: DemoModel, tokenizer: Tokenizer, count: int = 400) -> str:
    """A line with the share of right answers of each skill."""
    right: dict[str, list[bool]] = defaultdict(list)
    with torch.no_grad():
        for name, item in _items(count):
            right[name].append(is_right(model, encode(tokenizer, pieces(item))))
    parts = [f"{name} {sum(got)}/{len(got)}" for name, got in sorted(right.items())]
    return "held out: " + "; ".join(parts)
