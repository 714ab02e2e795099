"""UniProcExecutor: a plan runs on the loaded model; what cannot be loaded is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_checkpoint import write_tiny_checkpoint

from quire.config.engine_args import EngineArgs
from quire.errors import BackendError, CheckpointError
from quire.executor import UniProcExecutor
from quire.params import SamplingParams
from quire.planning.plan import build_engine_config
from quire.protocol import ScheduledRequest, SchedulePlan


def executor(directory: Path) -> UniProcExecutor:
    args = EngineArgs(str(directory), backend="reference", max_model_len=64, max_num_seqs=4)
    return UniProcExecutor(build_engine_config(args))


def plan() -> SchedulePlan:
    request = ScheduledRequest(
        request_id="a",
        token_ids=[1, 2, 3],
        num_prompt_tokens=3,
        sampling_params=SamplingParams(temperature=0, seed=0),
        block_ids=[[5]],
        first_entries=[0],
        num_computed_tokens=0,
    )
    return SchedulePlan(
        request_ids=["a"],
        num_scheduled_tokens=[3],
        started={"a": request},
        new_block_ids={},
        released_request_ids=[],
    )


def test_a_plan_runs_on_the_model(tmp_path: Path) -> None:
    uniproc = executor(write_tiny_checkpoint(tmp_path))
    uniproc.submit(plan())
    result = uniproc.collect()
    assert len(result.sampled_token_ids[0]) == 1
    uniproc.shutdown()
    uniproc.shutdown()
    follow_up = plan()
    follow_up.released_request_ids.append("a")
    uniproc.submit(follow_up)
    with pytest.raises(BackendError, match="closed"):
        uniproc.collect()


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path)
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing tensor 'model\.norm\.weight'"):
        executor(directory)


def test_a_misshapen_tensor_is_named(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.norm.weight"] = np.ones(3, np.float32)
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight.*\[3\]"):
        executor(directory)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path)
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        executor(directory)
