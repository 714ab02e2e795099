"""Thoughts that a budget ends early, as the engine ends them: `</think>` after some token."""

import re
from random import Random

_BETWEEN_TOKENS = re.compile(r"(?=[ \n\d])|(?<=\d)")
_AT_ONCE_SHARE, _ANYWHERE_SHARE = 0.1, 0.15


def cut_thought(thought: str, rng: Random) -> str:
    """Text after `<think>` until the budget ends it: nothing, or a beginning of the thought.

    Most cuts are where tokens surely meet; the others may divide a word of several tokens.
    """
    if rng.random() < _AT_ONCE_SHARE:
        return ""
    if rng.random() < _ANYWHERE_SHARE:
        return "\n" + thought[: rng.randrange(len(thought) + 1)]
    cuts = [0, *(found.start() for found in _BETWEEN_TOKENS.finditer(thought)), len(thought)]
    return "\n" + thought[: rng.choice(cuts)]
