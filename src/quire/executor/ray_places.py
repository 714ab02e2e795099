"""Placement of an engine's ranks in a Ray cluster: a bundle of a placement group for each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from quire import env
from quire.config.records import EngineConfig
from quire.errors import ConfigError
from quire.log import get_logger

logger = get_logger(__name__)

_WAIT_S = 600.0
"""Seconds to wait for machines, which a cluster may start on demand."""
_NOTICE_S = 10.0


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine with ranks."""

    address: str
    bundles: tuple[int, ...]
    """The bundles of its ranks."""
    ray: Any
    group: Any

    def start(self, actor: type, name: str, bundle: int | None = None, num_gpus: int = 0) -> Any:
        """Start an actor on this machine. The bundles hold the cores; it takes none of them.
        `bundle`: the one with its GPU; None: the first."""
        scheduling = import_module("ray.util.scheduling_strategies")
        remote = self.ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(actor)
        place = scheduling.PlacementGroupSchedulingStrategy(
            placement_group=self.group,
            placement_group_bundle_index=self.bundles[0] if bundle is None else bundle,
        )
        options = {"name": name, "num_gpus": num_gpus, "scheduling_strategy": place}
        return remote.options(**options).remote()


@dataclass(slots=True)
class Places:
    """The machines, that of this process first."""

    machines: list[Machine]
    own_address: str
    """Address at which the machines reach this process."""
    _own_group: Any = None
    """The placement group, if it was made for this engine."""
    _num_left: int = field(init=False)
    """Machines that have not ended."""

    def __post_init__(self) -> None:
        self._num_left = len(self.machines)

    def leave(self) -> None:
        """One machine has ended; after the last one the bundles are given back."""
        self._num_left -= 1
        if self._num_left == 0:
            self.release()

    def release(self) -> None:
        """Give the bundles back. Idempotent."""
        if self._own_group is not None:
            import_module("ray.util").remove_placement_group(self._own_group)
            self._own_group = None


def find_places(ray: Any, config: EngineConfig) -> Places:
    """Reserve a bundle for each rank, or use the placement group around this process. Raises
    ConfigError."""
    util = import_module("ray.util")
    group, own = util.get_current_placement_group(), None
    wanted = config.parallel.world_size
    needs = {"CPU": config.device.num_threads}
    if config.device.backend == "cuda":
        needs["GPU"] = 1
    try:
        if group is None:
            group = own = util.placement_group([needs] * wanted, strategy="PACK")
            _wait(ray, group, wanted, needs)
            chosen: Sequence[int] = range(wanted)
        else:
            chosen = _bundles_of(group, wanted, needs)
        machines = _machines(ray, util, group, chosen)
    except BaseException:
        if own is not None:
            util.remove_placement_group(own)
        raise
    _warn_of_divided_stages(config, machines)
    here = util.get_node_ip_address()
    is_one = all(machine.address == here for machine in machines)
    return Places(machines, "127.0.0.1" if is_one else here, own)


def _wait(ray: Any, group: Any, num_bundles: int, needs: Mapping[str, int]) -> None:
    """Wait until the cluster has room. Raises ConfigError if it has none."""
    until = time.monotonic() + _WAIT_S
    while not group.wait(timeout_seconds=_NOTICE_S):
        free, total = ray.available_resources(), ray.cluster_resources()
        rooms = (f"{free.get(kind, 0):g} of {total.get(kind, 0):g} {kind}s" for kind in needs)
        text = (
            f"{num_bundles} ranks of {needs['CPU']} threads need a CPU of Ray for each thread"
            f"{' and a GPU each' if 'GPU' in needs else ''}, and {' and '.join(rooms)} are free"
        )
        if time.monotonic() > until:
            raise ConfigError(f"{text}; set num_threads, or add machines to the cluster")
        logger.warning("waiting for the Ray cluster: %s", text)


def _bundles_of(group: Any, wanted: int, needs: Iterable[str]) -> Sequence[int]:
    """The bundles of the placement group around this process that are for ranks: those that
    VLLM_RAY_BUNDLE_INDICES names, or the last ones with a CPU, and a GPU if ranks need one."""
    named, kinds = env.ray_bundle_indices(), " and a ".join(needs)
    usable = [
        number
        for number, bundle in enumerate(group.bundle_specs)
        if all(bundle.get(kind, 0) >= 1 for kind in needs)
    ]
    if named is None:
        if len(usable) < wanted:
            raise ConfigError(
                f"the placement group of this process has {len(usable)} bundles with a {kinds}, "
                f"and {wanted} ranks need one each"
            )
        return usable[-wanted:]
    if len(set(named)) != wanted or not set(named) <= set(usable):
        raise ConfigError(
            f"VLLM_RAY_BUNDLE_INDICES={','.join(map(str, named))} must name {wanted} different "
            f"bundles with a {kinds}, of {usable}"
        )
    return named


def _machines(ray: Any, util: Any, group: Any, chosen: Sequence[int]) -> list[Machine]:
    node_of = util.placement_group_table(group)["bundles_to_node_id"]
    address_of = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    here = ray.get_runtime_context().get_node_id()
    by_node: dict[str, list[int]] = {}
    for bundle in chosen:
        by_node.setdefault(node_of[bundle], []).append(bundle)
    order = sorted(by_node, key=lambda node: node != here)
    return [Machine(address_of[node], tuple(by_node[node]), ray, group) for node in order]


def _warn_of_divided_stages(config: EngineConfig, machines: Sequence[Machine]) -> None:
    size = config.parallel.tensor_parallel_size
    if any(len(machine.bundles) % size for machine in machines):
        logger.warning(
            "Ray has given the machines %s ranks, so that the %d ranks of a stage are on several "
            "machines; they exchange values over the network in every layer",
            [len(machine.bundles) for machine in machines],
            size,
        )
