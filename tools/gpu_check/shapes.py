"""Shapes of models, whose weights are random numbers."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.gpu_check.launches import fill

from quire.backends.cuda.device import Device
from quire.backends.cuda.plan import Plan
from quire.config.engine_args import EngineArgs
from quire.planning.compile_plan import CompilePlan
from quire.planning.plan import EnginePlan, plan_engine
from quire.weights import WeightStore

LLAMA_8B: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "hidden_act": "silu",
    "tie_word_embeddings": False,
}  # fmt: skip
TOY: Mapping[str, Any] = {
    **LLAMA_8B, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
    "max_position_embeddings": 512,
}  # fmt: skip


def shape_of(*, is_emulated: bool) -> dict[str, Any]:
    """Keys of config.json of the large shape, or of a toy in its place."""
    return dict(TOY if is_emulated else LLAMA_8B)


@contextmanager
def model_folder(config: Mapping[str, Any]) -> Iterator[str]:
    """A folder with config.json alone."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        yield folder


def planned(model: str, **given: Any) -> tuple[EnginePlan, CompilePlan]:
    """The plan of an engine on the GPU, in bfloat16."""
    args = EngineArgs(
        model=model, device="cuda", load_format="dummy", skip_tokenizer_init=True,
        dtype="bfloat16", enable_prefix_caching=False, **given,
    )  # fmt: skip
    plan = plan_engine(args)
    return plan, plan.compiled


def upload_random(plan: Plan, device: Device, store: WeightStore | None = None) -> None:
    """Takes the place of `Plan.upload_weights`: random numbers in all weights within a second.
    Uploading 16 GB from the host would take most of a check's time."""
    del store
    weights = plan.lowering.weights
    fill(device, weights.part(0, weights.num_bytes))
    for place, make in plan.lowering.constants.values():
        device.write(place, make())
