"""Fake ranks in threads: an error of one of them ends the others too, and not after a minute."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from executor_plans import PROMPT, config_of, plan_of
from rank_threads import _LONGEST_S
from thread_ranks import ThreadRanks

from quire.executor.multiproc import MultiprocExecutor


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("split", ["tensor_parallel_size", "pipeline_parallel_size"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_that_raises_ends_the_others(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, backend: str, split: str, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("a bit has flipped")

    num_before = threading.active_count()
    config = config_of(model_dir, backend=backend, **{split: 2})
    ranks = ThreadRanks(config)
    executor = MultiprocExecutor(config, ranks)
    worker = ranks.ranks[number].worker
    for name in ("step", "begin_step"):
        monkeypatch.setattr(worker, name, refuse, raising=False)
    begin = time.monotonic()
    executor.submit(plan_of("a", PROMPT))
    with pytest.raises(RuntimeError, match="a bit has flipped"):
        executor.collect()
    executor.shutdown()
    assert time.monotonic() - begin < _LONGEST_S / 2
    assert threading.active_count() <= num_before
