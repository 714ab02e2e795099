"""`Placement` in simulated fleets, compared with an oracle that knows all replicas."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from fleet_cases import Setting, cases, recorded, setting
from fleet_load import of_file
from fleet_run import Case, Outcome


@cache
def short() -> Setting:
    return setting(16, 1.0, 20, recorded())


@cache
def oracle(name: str) -> Outcome:
    """The oracle knows replicas as they are, so only what happens to them matters."""
    return short().run("oracle", short().cases()[name if "replica" in name else "nothing"])


def is_near(found: Outcome, best: Outcome, times: float = 1.05, points: float = 0.03) -> bool:
    """Whether a median is at most so many times the best one, and hits at most so much less."""
    is_quick = found.quantile(0.5) <= times * best.quantile(0.5)
    return is_quick and found.hits >= best.hits - points


@pytest.mark.parametrize("capacity", [0.5, 3])
def test_placement_is_near_the_oracle(capacity: float) -> None:
    one = setting(16, capacity, 20, recorded())
    found = one.run("placement")
    assert is_near(found, one.run("oracle"))
    assert len(found.ttft_s) > 500


@pytest.mark.sweep(5)
@pytest.mark.parametrize("name", cases())
def test_placement_is_near_the_oracle_although(name: str) -> None:
    found, best = short().run("placement", short().cases()[name]), oracle(name)
    assert is_near(found, best, 1.1, 0.05)
    assert found.quantile(0.99) <= 2 * best.quantile(0.99)


def test_requests_do_not_go_to_a_stopped_replica_but_to_their_prefixes() -> None:
    case = short().cases()["a replica stops"]
    found, simple = (short().run(name, case) for name in ("placement", "in turns"))
    assert found.num_stopped <= 3 < 2 * simple.num_stopped / 3
    assert found.quantile(0.5) <= 0.7 * simple.quantile(0.5)
    assert found.hits >= simple.hits + 0.4


def test_requests_of_a_replica_that_goes_are_placed_again() -> None:
    one = short()
    found = one.run("placement", Case(churn_s=(one.load[-1].starts_at - one.warm_up_s) / 8))
    assert found.num_broken > 0
    assert len(found.ttft_s) > 0.4 * sum(len(talk.turns) for talk in one.load)


def test_a_trace_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [
        {
            "timestamp": 1000 * n,
            "input_length": 1000 + n,
            "output_length": 5,
            "hash_ids": [n % 2, n],
        }
        for n in range(40)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    load = of_file(path, times_faster=2.0)
    assert [one.turns for one in load[:2]] == [[(1000, 5)], [(1001, 5)]]
    assert load[3].starts_at == 1.5
    found = Setting(4, recorded(), load, 0.0).run("placement")
    assert len(found.ttft_s) == 40
    assert found.hits == pytest.approx(
        38 * 512 / sum(one["input_length"] for one in rows), abs=0.01
    )


@pytest.mark.long
@pytest.mark.parametrize("capacity", [0.5, 1, 3])
@pytest.mark.parametrize(("count", "per_replica"), [(16, 150), (64, 60), (1000, 20)])
def test_fleets_of_all_sizes(count: int, per_replica: int, capacity: float) -> None:
    one = setting(count, capacity, per_replica, recorded())
    found = one.run("placement")
    assert is_near(found, one.run("oracle"))
