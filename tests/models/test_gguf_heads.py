"""A layer for multi-token prediction in a GGUF file drafts as that of the checkpoint does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gguf_hybrids import HybridFile
from gguf_mixtures import MixtureFile
from gguf_model_file import Stored, Tensors, into
from noted_drafts import noted_drafts
from safetensors.numpy import load_file
from tiny_heads import write_head, write_mtp_model

from quire import LLM, SamplingParams
from quire.scheduler.drafting.drafting import RowCosts

# Source: llama.cpp, conversion/qwen.py.
_OF_QWEN = {
    "mtp.fc.": "eh_proj.", "mtp.pre_fc_norm_embedding.": "enorm.",
    "mtp.pre_fc_norm_hidden.": "hnorm.", "mtp.norm.": "shared_head.norm.", "mtp.layers.0.": "",
}  # fmt: skip
_STORED = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm",
           "shared_head.norm": "shared_head_norm"}  # fmt: skip


def _stored_name(name: str) -> str | None:
    """llama.cpp's name of a tensor of transformers that only such a layer has."""
    layer, _, part = name.removeprefix("model.layers.").removesuffix(".weight").partition(".")
    return f"blk.{layer}.nextn.{_STORED[part]}.weight" if part in _STORED else None


class _Mixture(MixtureFile):
    def converted(self, tensors: Tensors) -> Iterator[Stored]:
        further = {name: stored for name in tensors if (stored := _stored_name(name))}
        for name, stored in further.items():
            yield stored, tensors[name], into(name, (...,))
        yield from super().converted({n: t for n, t in tensors.items() if n not in further})


class _Hybrid(HybridFile):
    def _stored_name(self, name: str) -> str:
        return _stored_name(name) or super()._stored_name(name)


def written(path: Path, kind: str, architecture: str, type_name: str) -> Path:
    """The model as a GGUF file."""
    config: dict[str, Any] = json.loads((path / "config.json").read_text())
    last = config["num_hidden_layers"]
    tensors = {}
    for name, array in load_file(path / "model.safetensors").items():
        begin = next((begin for begin in _OF_QWEN if name.startswith(begin)), None)
        if begin is not None:
            name = f"model.layers.{last}.{_OF_QWEN[begin]}{name.removeprefix(begin)}"
        tensors[name] = array
    config["num_hidden_layers"] = last + 1
    if "layer_types" in config:
        config["layer_types"] = [*config["layer_types"], "full_attention"]
    writer = (_Hybrid if kind.startswith("qwen") else _Mixture)(architecture, config, tensors)
    file = path.parent / f"{kind}.gguf"
    return writer.write(file, lambda _: type_name, nextn_predict_layers=1)


@pytest.mark.parametrize(("kind", "architecture"), [("glm", "glm4moe"), ("qwen-3.5", "qwen35")])
def test_a_file_drafts_as_the_checkpoint(
    kind: str, architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowCosts, "seconds", lambda *_: 1.0)
    noted, found = noted_drafts(monkeypatch), []
    path = write_mtp_model(tmp_path / kind, kind)
    for model in (path, written(path, kind, architecture, "F32")):
        spec = {"method": "mtp", "num_speculative_tokens": 3}
        with LLM(str(model), max_model_len=96, num_threads=1, dtype="float32",
                 speculative_config=spec) as llm:  # fmt: skip
            prompts = [{"prompt_token_ids": [7 * i * j % 250 for i in range(9)]} for j in (1, 2)]
            params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
            llm.generate(prompts, params, use_tqdm=False)
        found.append(noted.copy())
        noted.clear()
    assert len(found[0]) > 20
    assert found[0] == found[1]


def test_blocks_of_a_file_change_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowCosts, "seconds", lambda *_: 1.0)
    path = write_mtp_model(tmp_path / "glm", "glm", moe_intermediate_size=32)
    file = written(path, "glm", "glm4moe", "Q8_0")
    texts = []
    noted = noted_drafts(monkeypatch)
    for spec in ({"speculation": False}, {"speculative_config": {"method": "mtp"}}):
        with LLM(str(file), max_model_len=96, num_threads=1, **spec) as llm:
            params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, logprobs=1)
            [output] = llm.generate({"prompt_token_ids": [5, 6, 7]}, params, use_tqdm=False)
            texts.append((output.outputs[0].token_ids, output.outputs[0].logprobs))
    assert texts[0] == texts[1]
    assert noted


def test_a_head_of_its_own_for_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the file's embedding and head, whose blocks are in memory once."""
    monkeypatch.setattr(RowCosts, "seconds", lambda *_: 1.0)
    path = write_mtp_model(tmp_path / "glm", "glm", moe_intermediate_size=32)
    file = written(path, "glm", "glm4moe", "Q8_0")
    head = write_head(tmp_path / "head", path, "eagle", 1)
    noted = noted_drafts(monkeypatch)
    held = []
    for spec in (
        {"speculation": False},
        {"speculative_config": {"method": "eagle", "model": str(head)}},
    ):
        with LLM(str(file), max_model_len=96, num_threads=1, **spec) as llm:
            params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
            llm.generate({"prompt_token_ids": [5, 6, 7]}, params, use_tqdm=False)
            [found] = llm.collective_rpc(lambda worker: worker.model.memory().weight_bytes)
            held.append(found)
    assert noted
    own = sum(array.size for array in load_file(head / "model.safetensors").values())
    assert held[1] - held[0] <= 4 * own
