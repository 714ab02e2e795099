"""Ranks on two machines of a Ray cluster, both of which are this one, with TLS between them."""

from __future__ import annotations

from collections.abc import Iterator
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
    """Two machines with room for one rank each, which engines find."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")
        room = {"num_cpus": 1, "object_store_memory": 80 << 20}
        made = Cluster(initialize_head=True, head_node_args={**room, "include_dashboard": False})
        made.add_node(**room)
        patch.setenv("RAY_ADDRESS", made.address)
        yield
        ray.shutdown()
        made.shutdown()


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
    config = config_of(model, backend="cpu", **split)
    executor = RayDistributedExecutor(config)
    assert len(executor._ranks._nodes) == 2
    assert all(isinstance(line.steps, TlsConnection) for line in executor._ranks.ranks)
    requests = case_of("ray").requests
    wanted = run(EngineCore(config_of(model, backend="cpu")), requests)
    assert run(EngineCore(config, executor), requests).digest == wanted.digest
