"""Draft heads change no bit of a reply, and heads that do not fit are refused at the start."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_checkpoint import write_tiny_checkpoint
from tiny_heads import write_head, write_mtp_model

from quire import LLM, SamplingParams
from quire.config.engine_args import EngineArgs
from quire.errors import QuireError
from quire.planning.plan import plan_engine
from quire.scheduler.drafting.drafting import RowCosts

LAYERS = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
PARTS = ("lm_head.weight", "d2t")


def open_llm(target: Path, config: dict[str, Any] | None, **options: Any) -> LLM:
    spec: dict[str, Any] = {"speculation": False}
    if config is not None:
        spec = {"speculative_config": {"num_speculative_tokens": 3, **config}}
    return LLM(str(target), max_model_len=96, num_threads=1, disable_log_stats=False, **spec,
               **options)  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("target") / "tiny", num_hidden_layers=3)


@pytest.mark.parametrize("method", ["mtp", "eagle3"])
def test_a_conversation_goes_on(
    method: str, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With prefix hits, after preemption, in chunks, in bfloat16 and with an int8 cache."""
    monkeypatch.setattr(RowCosts, "seconds", lambda *_: 1.0)
    config: dict[str, Any] = {"method": method}
    if method == "mtp":
        target = write_mtp_model(tmp_path / "model", "qwen-next", torch_dtype="bfloat16")
    else:
        head = write_head(tmp_path / "head", target, method, 1, PARTS, draft_vocab_size=99,
                           **LAYERS)  # fmt: skip
        config["model"] = str(head)
    prompts = [{"prompt_token_ids": [(7 * i * j) % 250 for i in range(5 * j)]} for j in range(1, 9)]
    params = [
        SamplingParams(temperature=i % 2, seed=i, max_tokens=24, ignore_eos=True, logprobs=1)
        for i in range(8)
    ]
    found = []
    for one in (None, config):
        options = {"max_num_seqs": 5, "max_num_batched_tokens": 24, "dtype": "bfloat16",
                   "kv_cache_dtype": "int8"}  # fmt: skip
        with open_llm(target, one, **options) as llm:
            for _ in range(2):
                outputs = llm.generate(prompts, params, use_tqdm=False)
                llm.llm_engine.engine_core.scheduler.check_integrity()
            found.append([(x.outputs[0].token_ids, x.outputs[0].logprobs) for x in outputs])
            counts = {m.name: m.value for m in llm.get_metrics() if hasattr(m, "value")}
    assert found[0] == found[1]
    assert counts["vllm:spec_decode_num_draft_tokens"] > 50


def changed(head: Path, change: Callable[[dict[str, np.ndarray]], Any]) -> None:
    tensors = load_file(head / "model.safetensors")
    change(tensors)
    save_file(tensors, head / "model.safetensors")


def cut(head: Path) -> None:
    data = (head / "model.safetensors").read_bytes()
    (head / "model.safetensors").write_bytes(data[:-100])


def set_key(key: str, value: Any) -> Callable[[Path], None]:
    def change(head: Path) -> None:
        config = json.loads((head / "config.json").read_text())
        (head / "config.json").write_text(json.dumps({**config, key: value}))

    return change


def set_d2t(head: Path) -> None:
    changed(head, lambda tensors: tensors["d2t"].__setitem__(5, 400))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (set_key("vocab_size", 300), r"vocab_size of the draft head is 300, and .* has 288"),
        (set_key("hidden_size", 32), r"hidden_size of the draft head is 32, and .* has 64"),
        (set_key("target_hidden_size", 60), r"target_hidden_size .* is 60, and .* has 64"),
        (set_key("draft_vocab_size", 98), r"shape \[99, 64\], but config.json requires \[98, 64\]"),
        (set_key("draft_vocab_size", 289), r"draft_vocab_size is 289; it must be at most"),
        (set_key("num_hidden_layers", 2), r"num_hidden_layers is 2; it must be 1"),
        (set_key("eagle_aux_hidden_state_layer_ids", [1, 2, 4]), r"\[1, 2, 4\]; it must be three"),
        (set_d2t, r"d2t gives token 405 for row 5; it must be from 0 to 287"),
        (cut, r"model.safetensors"),
        (lambda head: changed(head, lambda tensors: tensors.pop("fc.weight")),
         r"missing tensor 'head.fc.weight' of shape \[64, 192\]"),
        (lambda head: changed(head, lambda tensors: tensors.pop("d2t")),
         r"draft_vocab_size is 99 and vocab_size 288, so the checkpoint must have a tensor d2t"),
    ],
)  # fmt: skip
def test_what_does_not_fit(
    change: Callable[[Path], None], text: str, target: Path, tmp_path: Path
) -> None:
    head = write_head(tmp_path / "head", target, "eagle3", 1, PARTS, draft_vocab_size=99, **LAYERS)
    change(head)
    with pytest.raises(QuireError, match=text):
        open_llm(target, {"method": "eagle3", "model": str(head)})


def test_what_is_refused(target: Path, tmp_path: Path) -> None:
    with pytest.raises(QuireError, match="num_nextn_predict_layers must be 1 or more"):
        open_llm(target, {"method": "mtp"})
    with pytest.raises(QuireError, match=r"speculative_config\.model: "):
        open_llm(target, {"method": "eagle", "model": str(tmp_path / "missing")})
    head = write_head(tmp_path / "head", target, "eagle", intermediate_size=30_000)
    config = {"method": "eagle", "model": str(head)}
    with pytest.raises(QuireError, match="from 1 to 128, not 129"):
        open_llm(target, {**config, "num_speculative_tokens": 129})
    with pytest.raises(QuireError, match="pipeline_parallel_size=2 divides the layers"):
        open_llm(target, config, pipeline_parallel_size=2)
    with pytest.raises(QuireError, match="The draft model eagle has a part in this"):
        open_llm(target, config, gpu_memory_utilization=1e-4)


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_what_a_head_shares_is_in_memory_once(
    quantization: str | None, target: Path, tmp_path: Path
) -> None:
    head = write_head(tmp_path / "head", target, "eagle", 1)
    own = sum(array.size for array in load_file(head / "model.safetensors").values())
    held, planned = [], []
    for config in (None, {"method": "eagle", "model": str(head)}):
        with open_llm(target, config, dtype="float32", quantization=quantization) as llm:
            [found] = llm.collective_rpc(lambda worker: worker.model.memory().weight_bytes)
            held.append(found)
        options = {} if config is None else {"speculative_config": config}
        args = EngineArgs(str(target), dtype="float32", quantization=quantization, **options)
        planned.append(plan_engine(args).needs.weight_bytes)
    assert 0.2 * own < held[1] - held[0] <= 4 * own + 4096
    assert held == planned
