"""`ReasoningTags`: the marks of a family's reasoning, which comes before the answer."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from quire.parsers.reasoning.prompt import last_mark, mark_at_end

_OWN_TEXT = re.compile(r":[^\s<>{}'\"]{1,32}>")


@dataclass(frozen=True)
class ReasoningTags:
    """Reasoning between two tags, as the first part of a reply; the answer follows.

    Without an end, all that follows the begin is reasoning. A second begin right after the first,
    as where the prompt has one too, is dropped; so is an end before all else.
    """

    begin: str
    end: str
    other_begins: tuple[str, ...] = ()
    """Mean the same as `begin`."""
    other_ends: tuple[str, ...] = ()
    """Mean the same as `end`."""
    header: str = ""
    """Follows the begin; is no part of the reasoning, and may be missing."""
    is_implied: bool = False
    """Whether a reply begins within the reasoning if neither prompt nor reply say so: families that
    always reason, some of whose templates have the begin and some not."""
    ends_at_call: bool = True
    """Whether a call of a tool ends the reasoning. What looks like a call and is none does not."""
    may_repeat: bool = False
    """Whether reasoning may also begin within the answer, as often as it likes."""
    keeps_space: bool = True
    """Whether white space before the end is part of the reasoning."""
    answer_marks: tuple[str, ...] = ()
    """Are dropped from the answer: what it stands in, and ends that follow the end."""
    trims_answer: bool = False
    """Whether white space before the answer, and around `answer_marks`, is dropped."""
    is_content: bool = False
    """Whether the reasoning is passed on as part of the answer, with its tags, for clients that
    send it back."""

    @property
    def begins(self) -> tuple[str, ...]:
        """All spellings of the begin."""
        return (self.begin, *self.other_begins)

    @property
    def ends(self) -> tuple[str, ...]:
        """All spellings of the end."""
        return (self.end, *self.other_ends)

    def spelled_in(self, text: str) -> ReasoningTags:
        """These tags as a text, of a chat template or a prompt, has them: some checkpoints write
        `<think:1a2b>` and `</think:1a2b>`, with a text of their own."""
        stem = self.begin.removesuffix(">")
        place = text.find(f"{stem}:")
        found = None if place < 0 else _OWN_TEXT.match(text, place + len(stem))
        if self.begin in text or found is None:
            return self
        end = self.end.replace(">", found.group())
        marks = tuple(end if mark == self.end else mark for mark in self.answer_marks)
        return replace(self, begin=stem + found.group(), end=end, answer_marks=marks)

    def is_open_in(self, prompt: str, *, is_continued: bool = False) -> bool:
        """Whether a reply to this prompt, a rendered text, begins within the reasoning.
        `is_continued`: the prompt ends with what the model is to go on with."""
        headed = tuple(begin + self.header.rstrip() for begin in self.begins)
        find = last_mark if is_continued else mark_at_end
        is_open = find(prompt, (*self.begins, *headed), self.ends)
        return self.is_implied if is_open is None else is_open
