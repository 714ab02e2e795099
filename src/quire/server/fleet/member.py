"""`Member`: one model of several: how it is planned, what it takes of memory, and its state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from quire.config import EngineConfig
from quire.config.memory import AvailableMemory
from quire.errors import ConfigError, DoesNotFitError, QuireError
from quire.log import configure
from quire.planning.facts import gather_facts
from quire.planning.plan import EnginePlan, settle
from quire.server.fleet.catalog import CatalogEntry
from quire.server.reply_formats import check_formats
from quire.server.served_model import ServedModel
from quire.units import MiB

MemberState = Literal["unloaded", "loading", "loaded", "unloading", "failed"]
_PROCESS_BYTES = 128 * MiB
"""Memory of an engine's process besides weights, workspace and KV cache."""


@dataclass(slots=True)
class Member:
    """A model and its state. Owned by the event loop."""

    entry: CatalogEntry
    model: ServedModel
    config: EngineConfig | None
    """None: it cannot be served, and `failure` says why."""
    num_bytes: int
    """Memory that it takes while it is loaded."""
    failure: str = ""
    """Why the last load failed; empty: it did not."""
    keep_alive_s: float | None = None
    """Seconds without a request after which it is unloaded; None: it stays."""
    last_used: float = field(default_factory=time.monotonic)
    waiting: list[asyncio.Future[None]] = field(default_factory=list)
    """Requests that wait until it is loaded."""
    loading: asyncio.Task[None] | None = None
    unloading: asyncio.Task[None] | None = None
    is_leaving: bool = False
    """Whether another model waits for its memory: new requests wait until it was loaded again."""

    @property
    def name(self) -> str:
        """Its first name."""
        return self.model.names[0]

    @property
    def state(self) -> MemberState:
        """State for requests."""
        if self.unloading is not None:
            return "unloading"
        if self.model.engine is not None:
            return "loaded"
        if self.loading is not None:
            return "loading"
        return "failed" if self.failure else "unloaded"

    @property
    def is_busy(self) -> bool:
        """Whether any request uses it."""
        model = self.model
        has_requests = model.engine is not None and bool(model.engine.requests)
        return bool(model.num_users or model.num_generating or has_requests)

    def expires_at(self) -> float | None:
        """When it is unloaded if no request comes (`time.monotonic`); None: never."""
        return None if self.keep_alive_s is None else self.last_used + self.keep_alive_s


def planned(entry: CatalogEntry, share_bytes: int, budget_bytes: int) -> tuple[EngineConfig, int]:
    """A model's configuration, and the bytes that it takes. `share_bytes`: as much as it takes if
    all models are to fit at once; a model whose weights leave no room in its share gets a KV cache
    for one request of the longest context. Raises QuireError if it cannot fit into the budget.
    """
    facts = gather_facts(replace(entry.engine, gpu_memory_utilization=1.0))
    configure(facts.observability.log_level, facts.observability.log_config_file)
    args = replace(entry.engine, gpu_memory_utilization=1.0)

    def settled(num_bytes: int, what: str, kv_bytes: int | None = None) -> EnginePlan:
        memory = AvailableMemory(max(1, num_bytes - _PROCESS_BYTES), what)
        asked = args if kv_bytes is None else replace(args, kv_cache_memory_bytes=kv_bytes)
        return settle(asked, "server", replace(facts, memory=memory))

    try:
        plan = settled(share_bytes, "its share of the memory for all models")
    except DoesNotFitError:
        whole = "the memory for all models"
        plan = settled(budget_bytes, whole)
        asked = plan.config.cache.asked
        if plan.needs.kv_layout.groups and asked.cache_bytes is asked.num_blocks is None:
            floor = plan.needs.kv_blocks(plan.needs.max_model_len) * plan.needs.kv_block_bytes
            plan = settled(budget_bytes, whole, floor)
    _check(plan.config)
    check_formats(entry.server, plan.config)
    cache, needs = plan.config.cache, plan.needs
    kv_bytes = cache.num_blocks * needs.kv_block_bytes if needs.kv_layout.groups else 0
    held = needs.weight_bytes + needs.workspace_bytes + kv_bytes + entry.engine.kv_store_memory
    return plan.config, held + _PROCESS_BYTES


@contextmanager
def naming(entry: CatalogEntry) -> Iterator[None]:
    """Lets mistakes name the file, if any, and the model."""
    try:
        yield
    except DoesNotFitError:
        raise
    except QuireError as error:
        file = entry.server.models
        place = f"--models {file}: " if file else ""
        raise ConfigError(f"{place}{entry.names[0]}: {error}") from None


def make_member(entry: CatalogEntry, model: ServedModel, share: int, budget: int) -> Member:
    """A member that is not loaded. One that does not fit has a `failure`. Raises QuireError for a
    model that cannot be served for another reason."""
    try:
        with naming(entry):
            config, num_bytes = planned(entry, share, budget)
    except DoesNotFitError as error:
        return Member(entry, model, None, 0, str(error))
    return Member(entry, model, config, num_bytes, keep_alive_s=entry.keep_alive_s)


def _check(config: EngineConfig) -> None:
    if config.parallel.world_size_across_dp > 1:
        raise ConfigError(
            "one model of several must have one rank: leave out tensor_parallel_size, "
            "pipeline_parallel_size and data_parallel_size"
        )
    if config.kv_events is not None:
        raise ConfigError(
            "kv_events_config must not be set with several models, whose engines would listen on "
            "the same port"
        )
