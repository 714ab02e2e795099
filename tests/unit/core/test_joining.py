"""Several engines answer and report as one."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.parallel.joining import join_answers, join_stats, join_stores
from quire.errors import ConfigError
from quire.protocol import KVStoreStats, SchedulerStats

_UNKNOWN = {"error": "load it again", "is_unknown": True}
"""The answer of an engine that was not there when the load was asked for."""


@pytest.mark.parametrize(
    ("command", "answers", "joined"),
    [
        ("collective_rpc", [["a", "b"], ["c"]], ["a", "b", "c"]),
        ("reset_prefix_cache", [True, False], False),
        ("is_busy", [False, True], True),
        ("is_sleeping", [True, True], True),
        ("pause", [None, None], None),
        ("kv_store_clear", [2, 3], 5),
        ("adapters_load_result", [{"digest": "a"}, None], None),
        ("adapters_load_result", [{"digest": "a"}, {"error": "b"}], {"error": "b"}),
        ("adapters_load_result", [_UNKNOWN, {"digest": "a"}], {"digest": "a"}),
        ("adapters_load_result", [_UNKNOWN, None], None),
        ("adapters_load_result", [_UNKNOWN, _UNKNOWN], _UNKNOWN),
        (
            "kv_store_usage",
            [{"host": {"bytes": 2}}, {"host": {"bytes": 3}, "disk": {"bytes": 1}}],
            {"host": {"bytes": 5}, "disk": {"bytes": 1}},
        ),
    ],
)
def test_answers_are_joined(command: str, answers: list[Any], joined: object) -> None:
    assert join_answers(command, answers) == joined


def test_answers_that_differ_are_not_hidden() -> None:
    with pytest.raises(ConfigError, match="start_profile has an answer for each engine"):
        join_answers("start_profile", [1, 2])


def test_maps_of_blocks_follow_each_other() -> None:
    one = {
        "block_size": 16, "num_blocks": 2, "free": 1, "cached": 1, "used": 0, "shared": 0,
        "usage": 0.5, "blocks_per_cell": 1, "map": "f1c1",
    }  # fmt: skip
    joined = join_answers("block_map", [one, {**one, "map": "f2", "usage": 0.0}])
    assert (joined["num_blocks"], joined["map"], joined["usage"]) == (4, "f1c1f2", 0.25)


def test_gauges_are_added_and_counts_are_those_of_the_step() -> None:
    store = KVStoreStats(sums={"loaded": {"host": 1.0}}, usage={"host": (1, 10)})
    first = SchedulerStats(
        num_running=2, num_waiting=1, kv_cache_usage=0.5, num_preemptions=4, kv_store=store
    )
    newest = SchedulerStats(
        num_running=1, num_waiting=0, kv_cache_usage=0.1, num_preemptions=1, kv_store=store
    )
    joined = join_stats([first, newest], newest)
    assert (joined.num_running, joined.num_waiting, joined.num_preemptions) == (3, 1, 1)
    assert joined.kv_cache_usage == pytest.approx(0.3)
    assert joined.kv_store is None
    stores = join_stores([store, store])
    assert (stores.sums, stores.usage) == ({"loaded": {"host": 2.0}}, {"host": (2, 20)})
