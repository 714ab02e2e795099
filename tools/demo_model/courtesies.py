"""Courtesies of users around a request: a greeting, a reason before it, thanks or a wish after
it."""

from random import Random

_BEFORE = (
    "Hi! ", "Hello. ", "Hey! ", "Hi there. ", "Good morning. ", "Dear assistant, ", "OK, ", "So, ",
    "Quick one: ", "A small task: ", "Here is a task. ", "One more: ", "Next: ", "Question: ",
    "I have a request. ", "For a game I need this. ", "This is for school. ", "I need your help. ",
    "Please help. ", "Help, please. ", "Another one. ", "Now this: ", "My question: ", "Please: ",
    "I am in a hurry. ", "A question about words. ", "Sorry to bother you. ", "Well, ", "Right. ",
)  # fmt: skip
_AFTER = (
    " Thanks!", " Thank you.", " Thanks in advance.", " Please.", " Nothing else.", " Be quick.",
    " Only the answer, please.", " Just the answer.", " It is for a poster.", " I need it soon.",
    " It is for school.", " Thanks a lot!", " No explanation.", " That would help me.", " Cheers!",
    " Thank you very much.", " It's for a game.", " Do it now.", " Answer in one line.",
)  # fmt: skip
_ENDS = ".!?"


def courteous(request: str, rng: Random) -> str:
    """The request, in three cases of ten with words before it or after it."""
    kind = rng.random()
    if kind < 0.16:
        before = rng.choice(_BEFORE)
        small = not before.rstrip().endswith((".", "!")) and request[1:2].islower()
        return before + (request[0].lower() + request[1:] if small else request)
    if kind < 0.28 and request[-1] in _ENDS:
        return request + rng.choice(_AFTER)
    if kind < 0.31:
        return request + "\n" + rng.choice(_AFTER).strip()
    return request
