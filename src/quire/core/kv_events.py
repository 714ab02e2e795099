"""`KVEvents` publishes which KV blocks and stored chunks an engine keeps and drops; `BlockReports`
sends the keys of blocks to the engine's own front ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quire import env
from quire.config.records import EngineConfig
from quire.core.capability import Capability
from quire.core.event_publisher import EventPublisher
from quire.kvcache import BlockEvents, KVCacheManager
from quire.kvcache.block_events import BlockReport
from quire.kvstore.tiers.events import TierEvents
from quire.protocol import EngineCoreOutputs


class KVEvents(Capability):
    """The events of an engine. The last capability, so that it sees what the others did."""

    def __init__(self, publisher: EventPublisher, kv: KVCacheManager) -> None:
        as_int = env.kv_events_have_numbers()
        self._publisher = publisher
        self._blocks = BlockEvents(kv.layout, kv.block_size, publisher.publish, as_int=as_int)
        kv.pool.events.append(self._blocks)
        self.of_tiers = TierEvents(publisher.publish, as_int=as_int)
        """Publishes the events of the KV store's tiers."""

    def follow(self, outputs: EngineCoreOutputs, step_s: float) -> None:
        del outputs, step_s
        self._blocks.flush()

    def abort(self, request_ids: Sequence[str]) -> None:
        del request_ids
        self._blocks.flush()

    def shutdown(self) -> None:
        self._publisher.close()

    def abandon(self) -> None:
        self._publisher.abandon()


def kv_events(config: EngineConfig, kv: KVCacheManager) -> KVEvents | None:
    """None: KV events are off."""
    if config.kv_events is None:
        return None
    return KVEvents(EventPublisher(config.kv_events, config.parallel.data_parallel_rank), kv)


class BlockReports(Capability):
    """Off until a front end calls `follow_blocks`."""

    is_active = False

    def __init__(self, kv: KVCacheManager) -> None:
        self._kv = kv
        self._report: BlockReport | None = None

    @property
    def commands(self) -> Mapping[str, Callable[..., Any]]:
        return {"follow_blocks": self._follow_blocks}

    def follow(self, outputs: EngineCoreOutputs, step_s: float) -> None:
        del step_s
        if self._report is not None:
            outputs.blocks = self._report.take()

    def _follow_blocks(self) -> list[bytes]:
        """Reports the changes of the prefix cache from now on; returns the keys that it has."""
        group = self._kv.layout.shared_group
        if group is None:
            return []
        if self._report is None:
            self._report = BlockReport(group)
            self.is_active = True
            self._kv.pool.events.append(self._report)
        return self._kv.pool.keys_of(group)
