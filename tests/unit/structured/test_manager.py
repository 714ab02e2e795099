"""StructuredOutputManager: from a request's begin to its end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from grammar_jobs import AtOnce, Late, followed
from small_vocabulary import allowed, ids, source

from quire.structured import compile as module
from quire.structured import follower as following
from quire.structured.compile import GrammarCompiler
from quire.structured.manager import WAIT_PER_MASK_S, GrammarNews, Job, StructuredOutputManager
from quire.structured.params import StructuredOutputsParams
from quire.structured.tags.texts import AddedTokens
from quire.structured.vocabulary import VocabularySource

IDS = ids()
CHOICE = StructuredOutputsParams(choice=["yes", "no"])
STARS = StructuredOutputsParams(regex="a*")
WRONG = StructuredOutputsParams(regex="((")
WAIT_S = 60.0


@pytest.fixture
def manager() -> StructuredOutputManager:
    return StructuredOutputManager(GrammarCompiler(source))


def wait(manager: StructuredOutputManager, count: int) -> dict[str, str | None]:
    ready: list[GrammarNews] = []
    while len(ready) < count:
        ready += manager.take_news(WAIT_S)
    return {one.request_id: one.error for one in ready}


def masks(manager: StructuredOutputManager, *request_ids: str) -> list[set[str | int]]:
    return [allowed(mask) for mask in manager.masks(list(request_ids)).values()]


def test_requests_follow_their_own_tokens(manager: StructuredOutputManager) -> None:
    for name in ("a", "b"):
        manager.add(name, CHOICE, ignore_eos=False)
    assert wait(manager, 2) == {"a": None, "b": None}
    followed(manager, "a", [IDS["y"]])
    assert manager.take_news(WAIT_S) == []
    assert masks(manager, "b", "a") == [{"y", "ye", "yes", "n", "no"}, {"e"}]
    assert manager.num_requests == 2
    for name in ("a", "b"):
        manager.forget(name)
    assert manager.num_requests == 0
    assert manager.take_news(WAIT_S) == [], "it does not wait for what will not come"


def test_a_text_that_has_begun(manager: StructuredOutputManager) -> None:
    manager.add("a", CHOICE, begun=[IDS["y"]])
    manager.add("b", CHOICE, begun=[IDS["y"], IDS["e"], IDS["s"]])
    wait(manager, 2)
    assert masks(manager, "a") == [{"e"}]
    followed(manager, "a", [IDS["e"]])
    assert masks(manager, "a") == [{"s"}]
    assert len(masks(manager, "b")[0]) >= 1
    assert manager.add("c", CHOICE, begun=[IDS["a"]]) is None
    assert "refuses a token" in str(wait(manager, 1)["c"])


def test_a_grammar_that_takes_too_long_to_follow_ends_its_request_alone(
    manager: StructuredOutputManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, per_step = [0.0], {"slow": 0.1, "fair": 0.005}
    monkeypatch.setattr(following, "thread_time", lambda: now[0])
    for name in per_step:
        manager.add(name, STARS)
    wait(manager, 2)
    for name, cost in per_step.items():
        follower = manager._requests[name].follower
        matcher = follower._matcher
        assert matcher is not None

        def advance(token_ids: list[int], take: Any = matcher.advance, cost: float = cost) -> None:
            now[0] += cost
            take(token_ids)

        slowed = SimpleNamespace(advance=advance, mask=matcher.mask)
        monkeypatch.setattr(follower, "_matcher", slowed)
    assert not any(manager._requests[name].follower.is_slow for name in per_step)
    for count in range(1, 30):
        followed(manager, "fair", [IDS["a"]])
        if count < 8:
            followed(manager, "slow", [IDS["a"]])
    assert manager._requests["slow"].follower.is_slow
    assert not manager.advance("slow", [IDS["a"]])
    manager.run_masks(WAIT_S)
    [news] = manager.take_news(WAIT_S)
    assert news.request_id == "slow"
    assert news.is_unmet
    assert "takes too much: more than 1 s" in str(news.error)
    assert not manager.take_news(WAIT_S), "it does not wait for what will not come"


def test_what_compiling_took_is_not_left_to_follow(
    manager: StructuredOutputManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(following, "thread_time", lambda: now[0])
    manager.add("a", STARS)
    assert wait(manager, 1) == {"a": None}
    follower = manager._requests["a"].follower
    assert follower._grammar is not None
    follower._grammar.compile_s = 0.6
    matcher = follower._matcher
    assert matcher is not None

    def advance(token_ids: list[int]) -> None:
        now[0] += 0.08
        matcher.advance(token_ids)

    slowed = SimpleNamespace(advance=advance, mask=matcher.mask)
    monkeypatch.setattr(follower, "_matcher", slowed)
    followed(manager, "a", [IDS["a"]])
    assert not manager.advance("a", [IDS["a"]])
    manager.run_masks(WAIT_S)
    [news] = manager.take_news(WAIT_S)
    assert "takes too much" in str(news.error)


def test_end_tokens_that_a_request_ignores_are_not_allowed(
    manager: StructuredOutputManager,
) -> None:
    manager.add("a", STARS, ignore_eos=False)
    manager.add("b", STARS, ignore_eos=True)
    wait(manager, 2)
    assert masks(manager, "a", "b") == [{"a", "<eos>", "<end>"}, {"a"}]
    manager.add("c", CHOICE, ignore_eos=True)
    wait(manager, 1)
    for token in ("yes", "<eos>", "<end>", "<eos>"):
        followed(manager, "c", [IDS[token]])
        assert masks(manager, "c") == [{"<eos>", "<end>"}], "nothing else may come"


def test_what_is_wrong_is_told_of_its_request_alone(manager: StructuredOutputManager) -> None:
    manager.add("a", WRONG, ignore_eos=False)
    manager.add("b", CHOICE, ignore_eos=False)
    found = wait(manager, 2)
    assert "unclosed group" in (found["a"] or "")
    assert found["b"] is None
    assert not manager.advance("b", [IDS["x"]])
    manager.run_masks(WAIT_S)
    [news] = manager.take_news(0.0)
    assert news.request_id == "b"
    assert "refuses a token" in (news.error or "")
    assert manager.num_requests == 0


def test_a_tokenizer_that_cannot_be_read_is_an_error_of_requests() -> None:
    def read() -> VocabularySource:
        raise OSError("no such file")

    manager = StructuredOutputManager(GrammarCompiler(read))
    manager.add("a", CHOICE, ignore_eos=False)
    assert wait(manager, 1) == {"a": "compiling or following the grammar failed: no such file"}


def test_requests_that_end_while_their_grammar_is_compiled(
    manager: StructuredOutputManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[StructuredOutputsParams] = []
    may_go_on = threading.Event()
    grammar_of = module.grammar_of

    def slow(spec: StructuredOutputsParams, added: AddedTokens) -> str:
        begun.append(spec)
        may_go_on.wait(WAIT_S)
        return grammar_of(spec, added)

    monkeypatch.setattr(module, "grammar_of", slow)
    for number in range(module.NUM_THREADS):
        blocking = StructuredOutputsParams(choice=[f"blocks {number}"])
        manager.add(f"blocks {number}", blocking, ignore_eos=False)
    for name in ("a", "b"):
        manager.add(name, CHOICE, ignore_eos=False)
    manager.add("alone", STARS, ignore_eos=False)
    assert manager.take_news(0.0) == []
    for name in ("a", "alone", "blocks 0"):
        manager.forget(name)
    may_go_on.set()
    found = wait(manager, module.NUM_THREADS)
    assert found.keys() == {"b", *(f"blocks {n}" for n in range(1, module.NUM_THREADS))}
    assert CHOICE in begun, "b waits for it"
    assert STARS not in begun, "nobody waits for it"
    manager.add("again", STARS, ignore_eos=False)
    assert wait(manager, 1) == {"again": None}


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_tokens_without_a_choice_are_known_with_their_masks(
    manager: StructuredOutputManager, ignore_eos: bool
) -> None:
    manager.add("a", CHOICE, ignore_eos=ignore_eos)
    wait(manager, 1)
    forced = followed(manager, "a", [IDS["y"]])
    assert forced == [IDS["e"], IDS["s"]]
    assert manager.look_ahead("a", [IDS["n"]]) == forced
    joined = manager.masks(["a"], {"a": forced})["a"]
    size = len(joined) // 3
    found = [allowed(joined[i * size : (i + 1) * size]) for i in range(3)]
    assert found == [{"e"} | ({"es"} & found[0]), {"s"}, {"<eos>", "<end>"}]
    assert masks(manager, "a") == [found[0]]
    followed(manager, "a", forced)
    assert masks(manager, "a") == [{"<eos>", "<end>"}]


def test_many_tokens_without_a_choice_are_found_in_several_steps() -> None:
    manager = StructuredOutputManager(GrammarCompiler(source))
    manager.add("a", StructuredOutputsParams(regex="a{100}"))
    wait(manager, 1)
    forced = followed(manager, "a", [IDS["a"]])
    assert set(forced) == {IDS["a"]}
    assert 9 < len(forced) < 99


def test_a_mask_that_takes_long_is_late_and_others_are_not() -> None:
    jobs = Late(1)
    manager = StructuredOutputManager(GrammarCompiler(source), jobs)
    for name in "ab":
        manager.add(name, CHOICE)
    found: list[GrammarNews] = []
    while len(found) < 2:
        jobs.turn()
        found += manager.take_news(0.01)
    for name, text in (("a", "y"), ("b", "n")):
        assert not manager.advance(name, [IDS[text]])
    manager.run_masks()
    assert manager.take_news(0.0) == []
    first, second = jobs.kept
    second.run()
    assert [news.request_id for news in manager.take_news(WAIT_S)] == ["b"]
    assert masks(manager, "b") == [{"o"}]
    manager.forget("a")
    manager.add("a", STARS)
    first.run()
    jobs.kept.clear()
    assert manager.take_news(0.0) == [], "that was of another request"


def test_how_long_a_step_waits_for_masks() -> None:
    """No longer than a usual mask takes, if others wait that have no grammar."""
    waits: list[tuple[int, float]] = []

    class Noted(AtOnce):
        def run(self, jobs: Sequence[Job], wait_s: float) -> None:
            waits.append((len(jobs), wait_s))
            super().run(jobs, wait_s)

    manager = StructuredOutputManager(GrammarCompiler(source), Noted())
    names = ["a", "b", "c"]
    for name in names:
        manager.add(name, STARS)
    wait(manager, 3)
    assert manager.num_requests == 3
    waits.clear()
    manager.run_masks(1.0)
    for step_s, has_others in ((0.0, False), (0.0, True), (1.0, False), (1.0, True)):
        for name in names:
            assert not manager.advance(name, [IDS["a"]])
        manager.run_masks(step_s, has_others=has_others)
        assert len(manager.take_news(0.0)) == 3
    usual = WAIT_PER_MASK_S
    assert waits == [(3, 3 * usual), (3, usual), (3, 1.0), (3, 1.0)]


def test_what_goes_wrong_on_a_thread_is_an_error_of_its_request(
    manager: StructuredOutputManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_token_ids: list[int]) -> None:
        raise ZeroDivisionError("by zero")

    for name in "ab":
        manager.add(name, CHOICE)
    wait(manager, 2)
    follower = manager._requests["a"].follower
    monkeypatch.setattr(follower, "_matcher", SimpleNamespace(advance=broken))
    for name in "ab":
        assert not manager.advance(name, [IDS["y"]])
    manager.run_masks(WAIT_S)
    found = {news.request_id: news.error for news in manager.take_news(WAIT_S)}
    assert found == {"a": "compiling or following the grammar failed: by zero", "b": None}


def test_a_grammar_that_is_kept_holds_nothing_of_its_past_requests(
    manager: StructuredOutputManager,
) -> None:
    def followers() -> int:
        return sum(type(one) is following.Follower for one in gc.get_objects())

    gc.collect()
    before = followers()
    gc.disable()
    try:
        for names in (("a", "b"), ("c",)):  # compiled while they wait, and found compiled
            for name in names:
                manager.add(name, CHOICE)
            wait(manager, len(names))
            for name in names:
                manager.forget(name)
        assert followers() == before
    finally:
        gc.enable()


def test_who_leaves_while_a_grammar_waits_leaves_no_error(caplog: pytest.LogCaptureFixture) -> None:
    may_read = threading.Event()

    def read_source() -> VocabularySource:
        assert may_read.wait(WAIT_S)
        return source()

    manager = StructuredOutputManager(GrammarCompiler(read_source))
    others = [StructuredOutputsParams(regex=f"{letter}*") for letter in "ab"]
    for spec in others:  # all threads have work
        manager.add(str(spec), spec)
    for spec in (CHOICE, WRONG):
        manager.add("gone", spec)
        manager.forget("gone")
    manager.add("late", CHOICE)
    may_read.set()
    assert wait(manager, 3) == {**dict.fromkeys(map(str, others)), "late": None}
    assert manager.take_news(0.0) == []
    assert not caplog.records
