"""Earlier replies are kept by tenant, within limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from quire.protocol import CacheScope
from quire.scheduler.drafting import suffix
from quire.scheduler.drafting.suffix import SuffixProposer


def request(salt: str | None, prompt: list[int], reply: list[int]) -> Any:
    return cast(Any, SimpleNamespace(
        scope=CacheScope(salt), token_ids=[*prompt, *reply], num_prompt_tokens=len(prompt),
        num_output_tokens=len(reply), predicted_token_ids=[],
    ))  # fmt: skip


class Hashable(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def asked(proposer: SuffixProposer, salt: str | None, reply: list[int]) -> list[int] | None:
    one = Hashable(**vars(request(salt, [1000], reply)))
    proposal = proposer.propose(cast(Any, one), 8)
    return None if proposal is None else proposal.token_ids


def finish(proposer: SuffixProposer, salt: str | None, reply: list[int]) -> None:
    proposer.forget(cast(Any, Hashable(**vars(request(salt, [1000], reply)))))


def test_a_draft_ends_with_the_reply_that_it_comes_from() -> None:
    proposer = SuffixProposer(3, 10, 4.0)
    finish(proposer, None, [1, 2, 3, 4, 5])
    finish(proposer, None, [7, 8, 9])
    assert asked(proposer, None, [1, 2, 3]) == [4, 5]
    assert asked(proposer, None, [3, 4, 5]) is None
    assert asked(proposer, "other", [1, 2, 3]) is None


def test_old_replies_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = SuffixProposer(3, 4, 1.0)
    for i in range(5):
        finish(proposer, None, [i, i + 100, i + 200, i + 300])
    assert asked(proposer, None, [0, 100, 200]) is None
    assert asked(proposer, None, [4, 104, 204]) == [304]
    monkeypatch.setattr(suffix, "_MAX_TOKENS", 40)
    proposer = SuffixProposer(3, 100, 1.0)
    for i in range(50):
        finish(proposer, str(i % 3), [i, i + 100, i + 200, i + 300])
        assert sum(len(one.token_ids) for one in proposer._tenants.values()) <= 40
    assert asked(proposer, "1", [49, 149, 249]) == [349]
    SuffixProposer(3, 0, 1.0).forget(request(None, [1], [1, 2, 3, 4]))
