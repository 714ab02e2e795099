"""The mix of skills: how often each is drawn, how it is framed, and the two splits."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from tools.demo_model import (
    arithmetic,
    knowledge,
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
    Piece,
    exchange,
    is_held_out,
    joined_pieces,
    pieces,
    with_thoughts,
)
from tools.demo_model.thoughts import cut_thought

SYSTEM_PROMPTS = (
    "You are a helpful assistant.", "You are Quire's demo model.", "Be brief.",
    "You are a friendly assistant. Answer the questions of the user.", "Answer truthfully.",
    "You are a helpful AI assistant that can call functions.",
)  # fmt: skip
# Items with several right answers, which exact-match scores leave out.
OPEN_ENDED = ("stories", "stories, completion")
# Skills that have a single key for all items, hence no held-out part.
ALWAYS_TRAINED = ("README", "small talk")
_SENTENCE_TOKENS = 13


@dataclass(frozen=True)
class Mix:
    """The setting that changes over a run: the most tokens of filler around a needle."""

    longest: int = 2400

    def sentences(self, rng: Random) -> int:
        """A number of filler sentences, evenly spread over the orders of magnitude."""
        most = max(2.0, self.longest / _SENTENCE_TOKENS)
        return int(most ** rng.random()) if rng.random() < 0.85 else int(rng.uniform(0.5, 1) * most)


ShortMaker = Callable[[Random], Item]
LongMaker = Callable[[Random, Mix], Item]

SHORT: dict[ShortMaker, float] = {
    knowledge.capital_item: 2,
    knowledge.capital_completion: 2,
    knowledge.country_item: 1.5,
    knowledge.opposite_item: 1.5,
    knowledge.opposite_completion: 4,
    knowledge.calendar_item: 2,
    knowledge.sequence_completion: 5,
    knowledge.readme_completion: 0.5,
    partial(arithmetic.arithmetic_item, digits=1): 1,
    partial(arithmetic.arithmetic_item, digits=2): 4,
    partial(arithmetic.arithmetic_item, digits=3): 6,
    partial(arithmetic.arithmetic_item, digits=3, negative=True): 2,
    partial(arithmetic.arithmetic_item, digits=2, negative=True): 1,
    partial(arithmetic.arithmetic_completion, digits=2): 2.5,
    partial(arithmetic.arithmetic_completion, digits=3): 1.5,
    wordplay.reverse_item: 24,
    wordplay.sort_item: 36,
    wordplay.count_item: 16,
    wordplay.upper_item: 18,
    wordplay.copy_item: 10,
    talk.who_item: 1.5,
    talk.small_talk_item: 1,
    talk.refusal_item: 2,
    odd_requests.odd_request_item: 24,
    recall.told_item: 1.5,
    structured.json_item: 6,
}
LONG: dict[LongMaker, float] = {
    lambda rng, _: wordplay.copy_completion(rng): 1.5,
    lambda rng, mix: recall.needle_item(rng, mix.sentences(rng)): 2.5,
    lambda rng, mix: recall.needle_completion(rng, mix.sentences(rng)): 0.8,
    lambda rng, _: recall.memory_item(rng, between(rng)): 6,
    lambda rng, _: structured.tool_call_item(rng): 8,
    lambda rng, _: structured.tool_reply_item(rng): 4,
    lambda rng, _: structured.unneeded_tool_item(rng, short_chat(rng)): 4,
    lambda rng, _: parallel_calls.parallel_item(rng): 9,
    lambda rng, _: parallel_calls.parallel_reply_item(rng): 3,
    lambda rng, _: tool_threads.tool_thread(rng, short_chat): 10,
    lambda rng, _: two_steps.two_step_item(rng): 14,
    lambda rng, _: talk.story_item(rng): 1.5,
    lambda rng, _: talk.story_completion(rng): 1,
}
_SHORT_MAKERS, _SHORT_WEIGHTS = tuple(SHORT), tuple(SHORT.values())
_LONG_MAKERS, _LONG_WEIGHTS = tuple(LONG), tuple(LONG.values())
_SHORT_SHARE = sum(_SHORT_WEIGHTS) / (sum(_SHORT_WEIGHTS) + sum(_LONG_WEIGHTS))
_DRILL_SHARE, _THREAD_SHARE, _THINKING_SHARE = 0.10, 0.10, 0.20
# Of the chats with thinking enabled: those whose last thought a budget has ended.
_CUT_SHARE = 0.3
_EARLIER_TURNS_SHARE = 0.15
# Of the chats with thinking enabled: those whose client sends back the thoughts of earlier replies.
_KEPT_THOUGHTS_SHARE = 0.7


def short_chat(rng: Random) -> Item:
    """A short training item asked as a chat."""
    while True:
        item = rng.choices(_SHORT_MAKERS, _SHORT_WEIGHTS)[0](rng)
        trained = item.skill in ALWAYS_TRAINED or not is_held_out(item.key)
        if trained and not item.completion:
            return item


def between(rng: Random) -> list[Item]:
    """The turns between a fact and the question for it."""
    return [short_chat(rng) for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 3)))]


def framed(item: Item, rng: Random) -> Item:
    """The item with, at times, a system prompt, earlier unrelated turns and thinking enabled."""
    if item.completion:
        return item
    system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.15 else ""
    thinking = rng.random() < _THINKING_SHARE
    if rng.random() < _EARLIER_TURNS_SHARE:
        item = after_earlier_turns(item, rng)
    if thinking and rng.random() < _KEPT_THOUGHTS_SHARE:
        item = replace(item, history=with_thoughts(item.history))
    if thinking and rng.random() < _CUT_SHARE:
        item = replace(item, cut_thought=cut_thought(item.thought, rng))
    return replace(item, system=system, thinking=thinking)


def after_earlier_turns(item: Item, rng: Random) -> Item:
    """The item later in a chat: one to three unrelated questions and answers come first."""
    earlier = [short_chat(rng) for _ in range(rng.randint(1, 3))]
    turns = [turn for one in earlier for turn in exchange(one)]
    return replace(item, history=(*turns, *item.history))


def draw(rng: Random, mix: Mix, held_out: bool) -> Item:
    """An item of the wanted split."""
    while True:
        if rng.random() < _SHORT_SHARE:
            item = rng.choices(_SHORT_MAKERS, _SHORT_WEIGHTS)[0](rng)
        else:
            item = rng.choices(_LONG_MAKERS, _LONG_WEIGHTS)[0](rng, mix)
        split = False if item.skill in ALWAYS_TRAINED else is_held_out(item.key)
        if split == held_out:
            return framed(item, rng)


def one_of_each(rng: Random, mix: Mix) -> list[Item]:
    """An item of every kind, of either split."""
    return [*(make(rng) for make in SHORT), *(make(rng, mix) for make in LONG)]


def training_pieces(rng: Random, mix: Mix) -> list[Piece]:
    """One training text: an item, a drill of equations, or a thread of short chats."""
    kind = rng.random()
    if kind < _DRILL_SHARE:
        return arithmetic.arithmetic_drill(rng)
    if kind < _DRILL_SHARE + _THREAD_SHARE:
        thinking = rng.random() < _THINKING_SHARE
        chats = [short_chat(rng) for _ in range(rng.randint(2, 6))]
        return joined_pieces([replace(chat, thinking=thinking) for chat in chats])
    return pieces(draw(rng, mix, held_out=False))


def held_out_items(seed: int, count: int, mix: Mix) -> Iterator[Item]:
    """`count` held-out items in the training mix, each drawn from its own seed."""
    for number in range(count):
        yield draw(Random(f"held out {seed} {number}"), mix, held_out=True)
