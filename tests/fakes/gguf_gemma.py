"""GGUF files of Gemma 3n and 4, written by gguf-py from checkpoints of transformers.

Source: llama.cpp, conversion/gemma.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import NormalDist
from typing import Any

import numpy as np
from gguf_model_file import Floats, ModelFile, Stored, Tensors, into, unstacked

_ALTUP = re.compile(r"model\.altup_(projections|unembed_projections)\.(\d)\.weight")
_SCALES = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}
_GATE_UP = "experts.gate_up_proj"


class GemmaFile(ModelFile):
    """A Gemma model; `fused`: gates and ups of experts in one tensor, as they are."""

    fused = True

    def own_keys(self) -> dict[str, Any]:
        config = self.config
        kinds = [kind == "sliding_attention" for kind in config["layer_types"]]
        rope = config["rope_parameters"]
        keys = {
            "attention.sliding_window": config["sliding_window"],
            "attention.sliding_window_pattern": kinds,
            "attention.shared_kv_layers": config["num_kv_shared_layers"],
            "embedding_length_per_layer_input": config["hidden_size_per_layer_input"] or 0,
            "final_logit_softcapping": config.get("final_logit_softcapping"),
            "rope.freq_base": float(rope["full_attention"]["rope_theta"]),
            "rope.freq_base_swa": float(rope["sliding_attention"]["rope_theta"]),
        }
        more = self._gemma3n if self.architecture == "gemma3n" else self._gemma4
        return {**keys, **more(kinds)}

    def _gemma3n(self, kinds: list[bool]) -> dict[str, Any]:  # noqa: ARG002
        config = self.config
        sparsity = config["activation_sparsity_pattern"]
        scales = [NormalDist().inv_cdf(part) if part else float("-inf") for part in sparsity]
        return {
            "feed_forward_length": config["intermediate_size"],
            "altup.active_idx": config["altup_active_idx"],
            "altup.num_inputs": config["altup_num_inputs"],
            "activation_sparsity_scale": scales,
        }

    def _gemma4(self, kinds: list[bool]) -> dict[str, Any]:
        config, count = self.config, len(kinds)
        first = count - config["num_kv_shared_layers"]
        widths = config["intermediate_size"]
        if config["use_double_wide_mlp"]:
            widths = [widths * (1 + (layer >= first)) for layer in range(count)]
        wide = self._wide_head()
        keys: dict[str, Any] = {
            "feed_forward_length": widths,
            "attention.key_length": wide,
            "attention.value_length": wide,
            "attention.key_length_swa": config["head_dim"],
            "attention.value_length_swa": config["head_dim"],
            "rope.dimension_count": wide,
            "rope.dimension_count_swa": config["head_dim"],
        }
        own = config.get("per_layer_config", {})
        kv_heads = [
            own.get(str(layer), {}).get("num_key_value_heads", config["num_key_value_heads"])
            for layer in range(count)
        ]
        keys["attention.head_count_kv"] = kv_heads
        if config.get("enable_moe_block"):
            keys |= {
                "expert_count": config["num_experts"],
                "expert_used_count": config["top_k_experts"],
                "expert_feed_forward_length": config["moe_intermediate_size"],
            }
        return keys

    def _wide_head(self) -> int:
        own = self.config["per_layer_config"]
        full = self.config["layer_types"].index("full_attention")
        return int(own[str(full)]["head_dim"])

    def converted(self, tensors: Tensors) -> Iterator[Stored]:
        stacks: dict[str, list[str]] = {}
        for name, array in tensors.items():
            if match := _ALTUP.fullmatch(name):
                stacks.setdefault(f"model.altup_{match[1]}.weight", []).append(name)
            elif name == "lm_head.weight" and self.config["tie_word_embeddings"]:
                continue
            elif name.endswith(_GATE_UP) and not self.fused:
                yield from self._halves(name, array)
            else:
                yield self._name(name), array, into(name, (...,))
        for name, members in stacks.items():
            parts = np.stack([tensors[member] for member in sorted(members)])
            yield self.llama_name(name), parts, unstacked(sorted(members))
        if self.architecture == "gemma4":
            factors = self._factors()
            yield "rope_freqs.weight", factors, lambda values, held: None  # noqa: ARG005

    def _name(self, name: str) -> str:
        for end, own in _SCALES.items():
            if name.endswith(end):
                return f"blk.{name.split('.')[2]}.{own}"
        has_kind = name.endswith((".weight", ".bias"))
        return self.llama_name(name if has_kind else f"{name}.weight")

    def _halves(self, name: str, array: Floats) -> Iterator[Stored]:
        half = array.shape[1] // 2
        for index, part in enumerate(("gate", "up")):
            rows = slice(index * half, (index + 1) * half)
            stored = f"blk.{name.split('.')[2]}.ffn_{part}_exps.weight"
            yield stored, array[:, rows], into(name, (slice(None), rows))

    def _factors(self) -> Floats:
        """Of full attention: frequencies that are not rotated are divided by 1e30."""
        wide = self._wide_head()
        part = self.config["rope_parameters"]["full_attention"]["partial_rotary_factor"]
        rotated = int(wide * part / 2)
        return np.array([1.0] * rotated + [1e30] * (wide // 2 - rotated), np.float32)


def architecture_file(name: str, config: Any, tensors: Tensors) -> GemmaFile:
    """`name`: the architecture, and behind a colon what is special about this model."""
    return GemmaFile(name.partition(":")[0], config, tensors)
