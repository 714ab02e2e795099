"""GGUF files of models with recurrent layers and with latent attention, written by gguf-py from
checkpoints of transformers. Source of what happens to tensors: llama.cpp, conversion/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gguf_files import permuted
from gguf_model_file import (
    Floats,
    ModelFile,
    Stored,
    Tensors,
    Undo,
    into,
    rope_of,
    unpermuted,
    unstacked,
)

_EXPERT = re.compile(r"((?:model|backbone)\.layers\.(\d+)\.[\w.]+\.experts)\.(\d+)\.(\w+)\.weight")
_FUSED = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up_proj|down_proj)")
_INPUT = re.compile(r"model\.layers\.(\d+)\.(block_sparse_moe|shared_mlp)\.input_linear\.weight")
_QWEN = ("qwen3next", "qwen35", "qwen35moe")
_MAMBA2 = ("granitehybrid", "falcon-h1", "nemotron_h", "nemotron_h_moe", "mamba2")


class HybridFile(ModelFile):
    """A model with recurrent layers, or with latent attention."""

    def __init__(self, architecture: str, config: Mapping[str, Any], tensors: Tensors) -> None:
        defaults = {
            "max_position_embeddings": 1 << 20,
            "num_attention_heads": 0,
            "num_hidden_layers": len(config.get("layers_block_type") or ()),
        }
        super().__init__(architecture, {**defaults, **config}, tensors)

    def own_keys(self) -> dict[str, Any]:
        keys: dict[str, Any] = _KEYS[self.architecture](self.config)
        return keys

    def converted(self, tensors: Tensors) -> Iterator[Stored]:
        experts: dict[tuple[str, str], list[str]] = {}
        for name, array in tensors.items():
            if match := _EXPERT.fullmatch(name):
                experts.setdefault((match[1], match[4]), []).append(name)
            elif name == "lm_head.weight" and self.config.get("tie_word_embeddings"):
                continue
            else:
                yield from self._converted(name, array)
        for (prefix, part), members in experts.items():
            members.sort(key=lambda name: int(_EXPERT.fullmatch(name)[3]))  # type: ignore[index]
            stacked = np.stack([tensors[name] for name in members])
            yield self._name_of_experts(prefix, part), stacked, unstacked(members)

    def _converted(self, name: str, array: Floats) -> Iterator[Stored]:
        if match := _FUSED.fullmatch(name) or _INPUT.fullmatch(name):
            yield from self._halves(name, array, match)
        elif name.endswith("kv_b_proj.weight") and self.architecture != "minicpm3":
            yield from self._heads(name, array)
        elif name.endswith("in_proj_qkvz.weight"):
            yield from self._qkv_and_z(name, array)
        else:
            changed, undo = self._changed(name, array)
            yield self._stored_name(name), changed, undo

    def _stored_name(self, name: str) -> str:
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        name = name.replace(".dt_bias", ".dt_proj.bias")
        if name.endswith("expert_bias"):
            name += ".bias"
        if name.endswith("shared_expert_gate.weight"):  # gguf-py lacks it for Qwen3.5
            return f"blk.{name.split('.')[2]}.ffn_gate_inp_shexp.weight"
        is_dense = not self.config.get("num_local_experts")
        if self.architecture == "granitehybrid" and "output_linear" in name and is_dense:
            return f"blk.{name.split('.')[2]}.ffn_down.weight"
        return self.llama_name(name)

    def _name_of_experts(self, prefix: str, part: str) -> str:
        layer = prefix.split(".")[2]
        kinds = {"w1": "gate", "w3": "up", "w2": "down"}
        kind = kinds.get(part, part.removesuffix("_proj"))
        return f"blk.{layer}.ffn_{kind}_exps.weight"

    def _halves(self, name: str, array: Floats, match: re.Match[str]) -> Iterator[Stored]:
        """Gate and up of one matrix, or of one for each expert."""
        layer, kind = match[1], match[2]
        if kind == "down_proj":
            yield f"blk.{layer}.ffn_down_exps.weight", array, into(name, (...,))
            return
        end = "_shexp" if kind == "shared_mlp" else "_exps"
        if kind == "shared_mlp" and not self.config.get("num_local_experts"):
            end = ""
        half = array.shape[-2] // 2
        for index, part in enumerate(("gate", "up")):
            rows = slice(index * half, (index + 1) * half)
            place = (..., rows, slice(None))
            yield f"blk.{layer}.ffn_{part}{end}.weight", array[place], into(name, place)

    def _heads(self, name: str, array: Floats) -> Iterator[Stored]:
        """The matrices of keys, transposed, and of values of each head."""
        config = self.config
        heads, first = config["num_attention_heads"], config["qk_nope_head_dim"]
        of_head = array.reshape(heads, -1, array.shape[1])

        def keys(values: Floats, held: Tensors) -> None:
            held[name].reshape(of_head.shape)[:, :first] = values.swapaxes(1, 2)

        def values(values: Floats, held: Tensors) -> None:
            held[name].reshape(of_head.shape)[:, first:] = values

        stored = f"blk.{name.split('.')[2]}.attn_"
        yield f"{stored}k_b.weight", of_head[:, :first].swapaxes(1, 2), keys
        yield f"{stored}v_b.weight", of_head[:, first:], values

    def _qkv_and_z(self, name: str, array: Floats) -> Iterator[Stored]:
        """Each key head's q, k, v and z lie together there; here the q of all heads come first."""
        config = self.config
        heads, dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
        own = config["linear_num_value_heads"] // heads * config["linear_value_head_dim"]
        rows = np.arange(len(array)).reshape(heads, -1)
        parts = np.split(rows, np.cumsum([dim, dim, own]), axis=1)
        qkv = np.concatenate([part.reshape(-1) for part in parts[:3]])
        z, layer = parts[3].reshape(-1), name.split(".")[2]
        yield f"blk.{layer}.attn_qkv.weight", array[qkv], into(name, (qkv,))
        yield f"blk.{layer}.attn_gate.weight", array[z], into(name, (z,))

    def _changed(self, name: str, array: Floats) -> tuple[Floats, Undo]:
        order = self._order(name)
        rows, shape = array if order is None else array[order], array.shape
        factor = self._factors(name, array)
        is_decay = name.endswith("A_log")
        if is_decay:
            rows = -np.exp(rows)
        rows = (rows * factor).astype(np.float32)
        offset = np.float32(self._offset(name))
        to = self._shape(name, shape)

        def undo(values: Floats, held: Tensors) -> None:
            back = values.reshape(shape) - offset
            if is_decay:
                back = np.log(-back)
            back = back / factor
            held[name][... if order is None else order] = back

        columns = self._columns(name)
        if columns is not None:
            return np.ascontiguousarray(array[:, columns]), into(name, (slice(None), columns))
        heads = self._paired(name)
        if heads:
            return permuted(array, heads), unpermuted(name, heads)
        return (rows + offset).reshape(to), undo

    def _paired(self, name: str) -> int:
        if self.architecture not in ("granitehybrid", "nemotron_h", "nemotron_h_moe"):
            return 0
        if ".q_proj." in name:
            return int(self.config["num_attention_heads"])
        return int(self.config["num_key_value_heads"]) if ".k_proj." in name else 0

    def _offset(self, name: str) -> float:
        is_shifted = name.endswith("norm.weight") and "linear_attn" not in name
        return 1.0 if self.architecture in _QWEN and is_shifted else 0.0

    def _shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        if "conv" in name and name.endswith("weight") and len(shape) == 3:
            if self.architecture == "kimi-linear":
                return (1, shape[0], 1, shape[2])
            return (shape[0], shape[2])
        if self.architecture in _MAMBA2:
            if name.endswith(("A_log", ".D")):
                return (*shape, 1)
            if name.endswith((".mamba.norm.weight", "mixer.norm.weight")):
                groups = self.config.get("mamba_n_groups") or self.config["n_groups"]
                return (groups, shape[0] // groups)
        return shape

    def _tiled(self) -> Any:
        """The heads of v in the order of files of Qwen3.5."""
        config = self.config
        if self.architecture not in ("qwen35", "qwen35moe"):
            return None
        keys = config["linear_num_key_heads"]
        return np.arange(config["linear_num_value_heads"]).reshape(keys, -1).T.reshape(-1)

    def _order(self, name: str) -> Any:
        tiled, config = self._tiled(), self.config
        if tiled is None or "linear_attn" not in name:
            return None
        dim = config["linear_value_head_dim"]
        wide = (tiled[:, None] * dim + np.arange(dim)).reshape(-1)
        if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
            first = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
            return np.concatenate([np.arange(first), first + wide])
        if name.endswith("in_proj_z.weight"):
            return wide
        if name.endswith(("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias")):
            return tiled
        return None

    def _columns(self, name: str) -> Any:
        tiled = self._tiled()
        if tiled is None or not name.endswith("linear_attn.out_proj.weight"):
            return None
        dim = self.config["linear_value_head_dim"]
        return (tiled[:, None] * dim + np.arange(dim)).reshape(-1)

    def _factors(self, name: str, array: Floats) -> Any:
        """Falcon-H1's factors, which become part of its matrices."""
        if self.architecture != "falcon-h1" or array.ndim != 2:
            return np.float32(1)
        config = self.config
        around = config["attention_in_multiplier"], config["attention_out_multiplier"]
        by_part = {
            "down_proj": config["mlp_multipliers"][1], "gate_proj": config["mlp_multipliers"][0],
            "k_proj": config["key_multiplier"] * around[0], "q_proj": around[0],
            "v_proj": around[0], "o_proj": around[1], "out_proj": config["ssm_out_multiplier"],
            "lm_head": config["lm_head_multiplier"], "embed_tokens": config["embedding_multiplier"],
        }  # fmt: skip
        if "in_proj" in name:
            states = config["mamba_n_groups"] * config["mamba_d_state"]
            width = config["mamba_d_ssm"]
            counts = [width, width, states, states, config["mamba_n_heads"]]
            factors = np.repeat(np.array(config["ssm_multipliers"], np.float32), counts)
            return (factors * np.float32(config["ssm_in_multiplier"]))[:, None]
        part = next((part for part in by_part if part in name), None)
        return np.float32(1 if part is None else by_part[part])


Config = Mapping[str, Any]


def _kv_heads(config: Config, kinds: list[str] | None = None) -> dict[str, Any]:
    kinds = kinds or config["layer_types"]
    heads = config["num_key_value_heads"]
    return {
        "attention.head_count_kv": [
            heads if kind in ("full_attention", "attention") else 0 for kind in kinds
        ]
    }


def _delta(config: Config) -> dict[str, Any]:
    heads = config["linear_num_value_heads"]
    return {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": config["linear_value_head_dim"] * heads,
        "full_attention_interval": 4,
        "rope.dimension_count": int(
            config["head_dim"] * rope_of(config).get("partial_rotary_factor", 0.25)
        ),
        "rope.dimension_sections": [*rope_of(config).get("mrope_section", [11, 11, 10]), 0],
    }


def _experts(config: Config) -> dict[str, Any]:
    return {
        "expert_count": config.get("num_experts") or config.get("num_local_experts"),
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
    }


def _lfm2(config: Config) -> dict[str, Any]:
    size = config["intermediate_size"]
    if config.get("block_auto_adjust_ff_dim", True) and "num_experts" not in config:
        multiple = config["block_multiple_of"]
        size = int(config["block_ffn_dim_multiplier"] * int(2 * size / 3))
        size = -(-size // multiple) * multiple
    return {
        **_kv_heads(config),
        "feed_forward_length": size,
        "attention.layer_norm_rms_epsilon": config["norm_eps"],
        "shortconv.l_cache": config["conv_L_cache"],
    }


def _mamba2_layers(config: Config) -> dict[str, Any]:
    heads = config["mamba_n_heads"]
    return {
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.group_count": config["mamba_n_groups"],
        "ssm.inner_size": config.get("mamba_d_ssm")
        or config["mamba_expand"] * config["hidden_size"],
        "ssm.time_step_rank": heads,
    }


def _granite(config: Config) -> dict[str, Any]:
    experts = config["num_local_experts"]
    return {
        **_mamba2_layers(config),
        **_kv_heads(config, config.get("layers_block_type") or config["layer_types"]),
        "feed_forward_length": (
            config["intermediate_size"] if experts else config["shared_intermediate_size"]
        ),
        "attention.scale": float(config["attention_multiplier"]),
        "embedding_scale": float(config["embedding_multiplier"]),
        "residual_scale": float(config["residual_multiplier"]),
        "logit_scale": float(config["logits_scaling"]),
        "expert_count": experts or None,
        "expert_used_count": config["num_experts_per_tok"] if experts else None,
        "expert_shared_feed_forward_length": config["shared_intermediate_size"],
        "rope.scaling.finetuned": False,
    }


def _nemotron(config: Config) -> dict[str, Any]:
    kinds = config.get("layers_block_type") or config["layer_types"]
    return {
        **_kv_heads(config, kinds),
        "block_count": len(kinds),
        "feed_forward_length": [
            config["intermediate_size"] if kind == "mlp" else 0 for kind in kinds
        ],
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.state_size": config["ssm_state_size"],
        "ssm.group_count": config["n_groups"],
        "ssm.inner_size": config["mamba_num_heads"] * config["mamba_head_dim"],
        "ssm.time_step_rank": config["mamba_num_heads"],
    }


def _jamba(config: Config) -> dict[str, Any]:
    period, offset = config["attn_layer_period"], config["attn_layer_offset"]
    kinds = [
        "attention" if layer % period == offset else "mamba"
        for layer in range(config["num_hidden_layers"])
    ]
    return {
        **_kv_heads(config, kinds),
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
        "ssm.time_step_rank": config["mamba_dt_rank"],
        "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_tok"],
    }


def _mamba(config: Config) -> dict[str, Any]:
    return {
        "feed_forward_length": 0,
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.state_size": config["state_size"],
        "ssm.inner_size": config["intermediate_size"],
        "ssm.time_step_rank": config["time_step_rank"],
        "ssm.dt_b_c_rms": config["model_type"] == "falcon_mamba",
    }


def _mamba2(config: Config) -> dict[str, Any]:
    return {
        "feed_forward_length": 0,
        "attention.key_length": None,
        "attention.value_length": None,
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.state_size": config["state_size"],
        "ssm.group_count": config["n_groups"],
        "ssm.inner_size": config["num_heads"] * config["head_dim"],
        "ssm.time_step_rank": config["num_heads"],
    }


def _latent(config: Config) -> dict[str, Any]:
    rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    yarn, own = rope_of(config), dict[str, Any]()
    if yarn.get("rope_type") == "yarn":
        own = {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(yarn["factor"]),
            "rope.scaling.original_context_length": yarn["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": float(yarn["beta_fast"]),
            "rope.scaling.yarn_beta_slow": float(yarn["beta_slow"]),
            "rope.scaling.yarn_log_multiplier": 0.1 * yarn["mscale_all_dim"],
        }
    return {
        **own,
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": rank,
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.key_length": rank + rope,
        "attention.value_length": rank,
        "attention.key_length_mla": config["qk_nope_head_dim"] + rope,
        "attention.value_length_mla": config["v_head_dim"],
        "rope.dimension_count": rope,
    }


def _deepseek(config: Config) -> dict[str, Any]:
    is_third = config["model_type"] != "deepseek_v2"
    return {
        **_latent(config),
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_gating_func": 2 if is_third else 1,
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "expert_weights_norm": bool(config["norm_topk_prob"]),
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
    }


def _minicpm(config: Config) -> dict[str, Any]:
    size = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    return {
        **_latent(config),
        "attention.key_length_mla": None,
        "attention.value_length_mla": None,
        "attention.key_length": size,
        "attention.value_length": None,
    }


_KEYS: dict[str, Any] = {
    "qwen3next": lambda config: {**_delta(config), **_experts(config)},
    "qwen35": _delta,
    "qwen35moe": lambda config: {**_delta(config), **_experts(config)},
    "lfm2": _lfm2,
    "lfm2moe": lambda config: {
        **_lfm2(config), **_experts(config), "expert_gating_func": 2,
        "leading_dense_block_count": config["num_dense_layers"],
    },
    "granitehybrid": _granite,
    "falcon-h1": _mamba2_layers,
    "nemotron_h": _nemotron,
    "nemotron_h_moe": lambda config: {
        **_nemotron(config), **_experts(config), "expert_gating_func": 2,
        "expert_count": config["n_routed_experts"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "expert_weights_norm": bool(config["norm_topk_prob"]),
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
        "moe_latent_size": config["moe_latent_size"],
    },
    "jamba": _jamba,
    "mamba": _mamba,
    "mamba2": _mamba2,
    "deepseek2": _deepseek,
    "minicpm3": _minicpm,
    "kimi-linear": lambda config: {
        **_latent(config), "kda.head_dim": config["linear_head_dim"],
        "context_length": config["model_max_length"],
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_token"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["num_shared_experts"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "expert_group_count": config["num_expert_group"],
        "expert_group_used_count": config["topk_group"],
        "expert_gating_func": 2,
    },
}  # fmt: skip
