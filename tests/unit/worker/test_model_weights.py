"""Tensors of torch as new weights: the same bytes, copied."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_checkpoint import write_tiny_checkpoint

from quire.config.engine_args import EngineArgs
from quire.executor import UniProcExecutor
from quire.planning.plan import build_engine_config
from quire.worker.model_weights import _host_tensor

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_tensor_is_copied(dtype: str) -> None:
    base = torch.randn(6, 4, dtype=getattr(torch, dtype))
    tensor = base.t().requires_grad_()  # not contiguous, as a part of a larger one
    found = _host_tensor("w", tensor, (4, 6))
    assert np.array_equal(found.to_float32(), tensor.detach().float().numpy())
    before = found.to_float32().copy()
    base.zero_()
    assert np.array_equal(found.to_float32(), before)


def test_the_device_is_one_of_torch(tmp_path: Path) -> None:
    args = EngineArgs(str(write_tiny_checkpoint(tmp_path)), backend="reference", max_model_len=64)
    executor = UniProcExecutor(build_engine_config(args))
    assert executor.driver_worker.device == torch.device("cpu")
    executor.shutdown()
