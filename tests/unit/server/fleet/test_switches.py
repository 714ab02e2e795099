"""Many switches between models that do not fit together, whose engines are threads: nothing may be
left of them. `e2e/test_model_switches.py` has the same with a server."""

from __future__ import annotations

import faulthandler
import gc
import os
import threading
from pathlib import Path

import pytest
from tiny_model import write_tiny_model

from quire import SamplingParams
from quire.config.engine_args import EngineArgs
from quire.server import ServerArgs
from quire.server.fleet.catalog import CatalogEntry
from quire.server.fleet.fleet import Fleet
from quire.server.fleet.live import fleet_of
from quire.server.fleet.loading import ModelLoader
from quire.system.free_memory import bound_free_memory
from quire.units import MiB

_WARM, _SWITCHES = 40, int(os.environ.get("QUIRE_TEST_SWITCHES", "1000"))


def held() -> dict[str, int]:
    """What this process has: resident pages, descriptors, threads, children."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {
        "bytes": pages * os.sysconf("SC_PAGE_SIZE"),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "children": len(children),
    }


@pytest.mark.long
@pytest.mark.timeout(7200)
async def test_a_thousand_switches_leave_nothing(tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # it may take longer than any other test
    bound_free_memory()
    paths = [write_tiny_model(tmp_path / name) for name in "ab"]
    engine = EngineArgs(max_model_len=64, max_num_seqs=2, disable_log_stats=True, kv_store=False)
    args = ServerArgs(model_memory_bytes=400 * MiB)
    entries = [
        CatalogEntry((path.name,), EngineArgs(**{**vars(engine), "model": str(path)}), args, None)
        for path in paths
    ]

    context, _ = fleet_of(engine, args, entries, None)
    fleet = context.fleet
    assert isinstance(fleet, Fleet)
    fleet._loader = ModelLoader(args, None, "thread")
    fleet.budget_bytes = max(member.num_bytes for member in fleet.members)
    before, tokens = {}, []
    for number in range(_WARM + _SWITCHES):
        if number == _WARM:
            before = held()
        model = context.models[number % 2]
        await fleet.acquire(model)
        assert model.engine is not None
        assert context.models[1 - number % 2].engine is None
        params = SamplingParams(max_tokens=3, temperature=0)
        async for output in model.engine.generate("abc", params, f"r{number}"):
            tokens = output.outputs[0].token_ids
        fleet.release(model)
    after = held()
    await fleet.close()
    before, after, tokens = (before, after, list(tokens))
    print(before, after)
    assert len(tokens) == 3
    assert after["descriptors"] <= before["descriptors"] + 2
    assert after["threads"] <= before["threads"] + 2
    assert after["children"] <= before["children"]
    assert after["bytes"] <= before["bytes"] + 32 * MiB
