"""`ForbiddenTokens`: the tokens that a model's settings forbid in every reply."""

from __future__ import annotations

import msgspec


class ForbiddenTokens(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens that a model never generates."""

    words: list[list[int]] = []
    """Sequences of tokens, of which some may lie in the prompt."""
    first: list[tuple[int, list[int]]] = []
    """Numbers of tokens, and token ids that are not among so many first ones of a reply."""

    @property
    def singles(self) -> list[int]:
        """The words of one token."""
        return [word[0] for word in self.words if len(word) == 1]

    def at_first(self, num_tokens: int) -> set[int]:
        """Token ids that the model forbids after `num_tokens` of a reply, besides those that depend
        on other tokens."""
        found = {*self.singles}
        return found.union(*(ids for until, ids in self.first if num_tokens < until))
