"""Joins the answers and reports of several engines into those of one engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from quire.errors import ConfigError
from quire.protocol import KVStoreStats, SchedulerStats


def join_answers(command: str, answers: Sequence[Any]) -> Any:
    """The answer of all engines to a command of the core. Raises ConfigError for a command whose
    answers cannot be joined."""
    join = _JOINED.get(command)
    if join is not None:
        return join(answers)
    if any(answer != answers[0] for answer in answers):
        raise ConfigError(f"{command} has an answer for each engine; use data_parallel_size=1")
    return answers[0]


def join_stats(by_engine: Sequence[SchedulerStats], newest: SchedulerStats) -> SchedulerStats:
    """The state of all engines. Counts since the last snapshot are those of `newest`; the KV store
    is left out, see `join_stores`."""
    return msgspec.structs.replace(
        newest,
        num_running=sum(stats.num_running for stats in by_engine),
        num_waiting=sum(stats.num_waiting for stats in by_engine),
        kv_cache_usage=sum(stats.kv_cache_usage for stats in by_engine) / len(by_engine),
        kv_store=None,
    )


def join_stores(stores: Sequence[KVStoreStats]) -> KVStoreStats:
    """The counts and contents of the KV stores of one or more engines."""
    return KVStoreStats(
        sums=_added([store.sums for store in stores]),
        usage=_added([store.usage for store in stores]),
    )


def _added(answers: Sequence[Any]) -> Any:
    """Numbers are added, also those in lists and dictionaries."""
    first = answers[0]
    if isinstance(first, dict):
        names = dict.fromkeys(name for answer in answers for name in answer)
        return {
            name: _added([answer[name] for answer in answers if name in answer]) for name in names
        }
    if isinstance(first, list | tuple):
        return type(first)(map(_added, zip(*answers, strict=True)))
    return sum(answers) if isinstance(first, int | float) else first


def _block_maps(maps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The pools one after the other. Their cells are of one size, because the pools are."""
    counts = ("num_blocks", "free", "cached", "used", "shared")
    return {
        **maps[0],
        **{name: sum(one[name] for one in maps) for name in counts},
        "usage": sum(one["usage"] for one in maps) / len(maps),
        "map": "".join(one["map"] for one in maps),
    }


def _loads(answers: Sequence[Any]) -> Any:
    """The result of loading an adapter: an error of any engine, or None until all are done. Engines
    that are there since then load it with the first request that names it."""
    answers = [one for one in answers if one is None or "is_unknown" not in one] or answers
    if None in answers:
        return None
    return next((answer for answer in answers if "error" in answer), answers[0])


def _ids(answers: Sequence[list[int]]) -> list[int]:
    return sorted({number for answer in answers for number in answer})


_ADAPTERS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "load_result": _loads, "withdraw_load": any, "remove": any, "ids": _ids, "pin": all,
}  # fmt: skip
_JOINED: dict[str, Callable[[Sequence[Any]], Any]] = {
    "collective_rpc": lambda answers: [value for answer in answers for value in answer],
    "follow_blocks": lambda answers: [key for keys in answers for key in keys],
    "reset_prefix_cache": all,
    "is_busy": any,
    "is_paused": all,
    "is_sleeping": all,
    "wake_up": all,
    "block_map": _block_maps,
    "kv_store_usage": _added,
    "kv_store_stats": _added,
    "kv_store_clear": sum,
    "kv_store_pin": max,
    **{f"adapters_{name}": join for name, join in _ADAPTERS.items()},
    **{f"prompt_adapters_{name}": join for name, join in _ADAPTERS.items()},
}
