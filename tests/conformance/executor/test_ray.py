"""Ranks on two machines of a Ray cluster, both of which are this one, with TLS between them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from executor_plans import config_of
from rank_cases import case_of, run
from rank_certificates import write_certificates
from tiny_checkpoint import write_tiny_checkpoint

from quire.core.engine_core import EngineCore
from quire.executor.nodes.tls import TlsConnection
from quire.executor.ray_executor import RayDistributedExecutor

pytestmark = [
    pytest.mark.long,  # a Ray cluster is a dozen processes
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two machines, each with two CPUs and two GPUs in name, which engines find."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("QUIRE_CUDA_EMULATED", "1")
        room = {"num_cpus": 2, "num_gpus": 2, "object_store_memory": 80 << 20}
        made = Cluster(initialize_head=True, head_node_args={**room, "include_dashboard": False})
        made.add_node(**room)
        patch.setenv("RAY_ADDRESS", made.address)
        yield
        ray.shutdown()
        made.shutdown()


def visible_gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES says to the ranks of each machine."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended
            if "quire.executor.ray_agent" in (folder / "cmdline").read_text():
                words = (folder / "environ").read_text().split("\0")
                found += [w for w in words if w.startswith("CUDA_VISIBLE_DEVICES=")]
    return sorted(found)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("kind", ["tensor", "pipeline"])
def test_machines_with_certificates_have_the_same_tokens(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificates are set where the engine is, after the cluster was started."""
    for name, path in write_certificates(tmp_path).items():
        monkeypatch.setenv(name, path)
    model = write_tiny_checkpoint(tmp_path / "model")
    split = {f"{kind}_parallel_size": 2, "distributed_executor_backend": "ray"}
    config = config_of(model, backend="cpu", num_threads=2, **split)
    executor = RayDistributedExecutor(config)
    assert len(executor._ranks._nodes) == 2
    assert all(isinstance(line.steps, TlsConnection) for line in executor._ranks.ranks)
    requests = case_of("ray").requests
    wanted = run(EngineCore(config_of(model, backend="cpu")), requests)
    assert run(EngineCore(config, executor), requests).digest == wanted.digest


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("num_threads", "wanted"), [(2, ["0", "0"]), (1, ["0,1"])])
def test_ray_gives_each_rank_a_gpu(num_threads: int, wanted: list[str], tmp_path: Path) -> None:
    """The program of each machine sees the GPUs of its ranks, which nobody else gets meanwhile."""
    import ray

    model = write_tiny_checkpoint(tmp_path / "model")
    given = {"backend": "cuda", "dtype": "bfloat16"}
    config = config_of(
        model, tensor_parallel_size=2, num_threads=num_threads,
        distributed_executor_backend="ray", **given,
    )  # fmt: skip
    executor = RayDistributedExecutor(config)
    assert visible_gpus() == [f"CUDA_VISIBLE_DEVICES={numbers}" for numbers in wanted]
    assert ray.available_resources().get("GPU", 0) == 2
    requests = case_of("ray").requests
    found = run(EngineCore(config, executor), requests)
    assert found.digest == run(EngineCore(config_of(model, **given)), requests).digest
    until = time.monotonic() + 20
    while ray.available_resources().get("GPU", 0) < 4 and time.monotonic() < until:
        time.sleep(0.1)
    assert ray.available_resources()["GPU"] == 4
