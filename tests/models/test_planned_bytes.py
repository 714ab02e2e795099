"""The bytes of weights that a plan counts are those that the worker holds, whatever types a
checkpoint has its numbers in. Only the alignment of each weight is not counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf_dense
import pytest
import torch
from gguf_dense_cases import DENSE
from gguf_harness import gguf_model
from model_cases import CASES, write_checkpoint
from safetensors.torch import load_file, save_file

from quire.config.engine_args import EngineArgs
from quire.planning.plan import plan_engine
from quire.planning.quantize import quantize_model
from quire.worker import Worker

BY_NAME = {case.name: case for case in (*CASES, *DENSE)}
CHOSEN = ["llama-llama3", "qwen3-5-layers-tied", "gpt2", "qwen3-moe", "gemma3n", "granitemoe"]
LIMITS: dict[str, Any] = {
    "max_num_batched_tokens": 64, "max_num_seqs": 2, "kv_cache_memory_bytes": 1 << 24,
    "backend": "cpu", "skip_tokenizer_init": True,
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("cpu_backend")


def held_bytes(path: Path, **given: Any) -> int:
    """What a worker holds. Fails unless the plan counts the same."""
    plan = plan_engine(EngineArgs(str(path), **{**LIMITS, **given}))
    worker = Worker(plan.config)
    held = worker.model.memory().weight_bytes
    worker.close()
    num_weights = len(list(plan.compiled.program.params()))
    assert plan.needs.weight_bytes <= held <= plan.needs.weight_bytes + 64 * 2 * num_weights
    return held


@pytest.fixture(scope="module", params=CHOSEN)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.sweep(12)
@pytest.mark.parametrize("quantization", [None, "int8", "int4_w4a8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16", "mixed"])
def test_plain_numbers(
    name: str, stored: str, dtype: str, quantization: str | None, tmp_path: Path
) -> None:
    kind = getattr(torch, stored, torch.float16)
    path = write_checkpoint(BY_NAME[name], tmp_path, kind)
    if stored == "mixed":
        file = path / "model.safetensors"
        tensors = load_file(file)
        wide = [one for one in tensors if ".1." in one or "embed" in one or "wte" in one]
        save_file(
            {**tensors, **{one: tensors[one].float() for one in wide}}, file, {"format": "pt"}
        )
    held_bytes(path, dtype=dtype, quantization=quantization)


@pytest.mark.parametrize("stored", ["F16", "Q8_0"])
@pytest.mark.parametrize("name", ["gpt2", "stablelm:12B", "xverse", "smollm3"])
def test_gguf_files(name: str, stored: str, tmp_path: Path) -> None:
    """Matrices, of which some have their rows in another order."""
    model = gguf_model(
        gguf_dense.DenseFile, BY_NAME[name], tmp_path, lambda one: "F32" if "up" in one else stored
    )
    held_bytes(model.file, dtype="float32")


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
@pytest.mark.parametrize("tied", [True, False])
def test_half_of_the_bytes(load_format: str, tied: bool, tmp_path: Path) -> None:
    case = BY_NAME["llama-1-layer-tied" if tied else "llama-llama3"]
    path = write_checkpoint(case, tmp_path, torch.bfloat16)
    wide = write_checkpoint(case, tmp_path / "wide")
    given = {"dtype": "float32"}
    ratio = held_bytes(path, **given, load_format=load_format) / held_bytes(wide, **given)
    assert 0.5 <= ratio < 0.53


def test_packed_files(tmp_path: Path) -> None:
    """Tables stay in 16 bits."""
    path = write_checkpoint(BY_NAME["llama-llama3"], tmp_path / "plain", torch.bfloat16)
    for dtype, quantization in (("float32", "int8"), ("float32", None), ("bfloat16", "int4")):
        given: Any = {"dtype": dtype, "quantization": quantization}
        out = tmp_path / f"{dtype}-{quantization}"
        quantize_model(EngineArgs(str(path), **given), out)
        held_bytes(out)
