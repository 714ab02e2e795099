"""`model_config`: config.json and generation_config.json, of the metadata of a GGUF file.

The families check the values' ranges, as they do those of any config.json.
"""

from __future__ import annotations

import json
import math
from typing import Any

from quire.errors import CheckpointError, UnsupportedModelError
from quire.gguf.architectures import Architecture, Config, architecture_of
from quire.gguf.architectures.dense import DENSE_FOLDERS
from quire.gguf.architectures.expert_tensors import num_layers
from quire.gguf.architectures.facts import head_dim as read_head_dim
from quire.gguf.block_types import BY_NAME
from quire.gguf.keys import Keys
from quire.gguf.rope_factors import llama3_scaling, longrope_scaling
from quire.gguf.tokenizers.end_tokens import end_token_ids
from quire.gguf.yarn import original_length, yarn_scaling

_DTYPES = {"F32": "float32", "F16": "float16"}


def model_config(keys: Keys) -> Config:
    """config.json. Raises CheckpointError for missing or impossible values, and
    UnsupportedModelError for what Quire does not compute."""
    row = architecture_of(keys)
    table = keys.tensor("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise CheckpointError(f"{keys.path} must have a matrix token_embd.weight")
    own = row.config(keys)
    config: Config = {
        "architectures": [row.hf_name],
        "model_type": row.model_type,
        "vocab_size": table.shape[0],
        "hidden_size": keys.whole("{arch}.embedding_length"),
        "num_hidden_layers": num_layers(keys),
        "max_position_embeddings": keys.whole("{arch}.context_length"),
        "rms_norm_eps": keys.number(f"{{arch}}.attention.{row.eps}"),
        "hidden_act": "silu",
        "tie_word_embeddings": keys.tensor("output.weight") is None,
        "dtype": _DTYPES.get(table.type.name, "bfloat16"),
        **_attention(keys, row),
        **own,
    }
    if row.attention == "heads" and "num_key_value_heads" not in config:
        num_heads = config["num_attention_heads"]
        config["num_key_value_heads"] = keys.whole("{arch}.attention.head_count_kv", num_heads)
    if "intermediate_size" not in config:
        of_experts = keys.value("{arch}.expert_feed_forward_length")
        config["intermediate_size"] = keys.whole("{arch}.feed_forward_length", of_experts)
    if num_further := keys.whole("{arch}.nextn_predict_layers", 0):
        config["num_nextn_predict_layers"] = num_further
    if types := _block_types(keys, row):
        config["quantization_config"] = {"quant_method": "gguf", "types": types}
    if (
        "rope_theta" in config
        and not row.has_own_rope
        and (scaling := _rope_scaling(keys, config["rope_theta"]))
    ):
        is_yarn = scaling.get("rope_type") == "yarn"
        config["rope_scaling"] = {**scaling, **(row.yarn if is_yarn else {})}
    for name in ("bos", "eos"):
        if (token_id := keys.role_id(name)) is not None:
            config[f"{name}_token_id"] = token_id
    return config


def _attention(keys: Keys, row: Architecture) -> Config:
    """The heads and the rotation."""
    if row.attention == "none":
        return {}
    found = {
        "num_attention_heads": keys.whole("{arch}.attention.head_count"),
        "rope_theta": keys.number("{arch}.rope.freq_base", 10000.0),
    }
    if row.attention == "latent":
        return found
    head_dim = read_head_dim(keys)
    if keys.whole("{arch}.attention.value_length", head_dim) != head_dim:
        raise UnsupportedModelError(
            f"{keys.path}: values of another length than keys are not supported"
        )
    part = _rotated_part(keys, head_dim)
    return {**found, "head_dim": head_dim, "partial_rotary_factor": part}


def _block_types(keys: Keys, row: Architecture) -> dict[str, str]:
    """The types of matrices that are held in blocks, by the names that transformers gives them. A
    matrix whose halves have unlike types is left out, and so expanded."""
    found: dict[str, list[str]] = {}
    for header in keys.headers:
        for stored, tensor in header.tensors.items():
            if len(tensor.shape) > 1:
                for place in row.places(stored):
                    found.setdefault(place.name, []).append(tensor.type.name)
    return {
        name: types[0]
        for name, types in found.items()
        if len(set(types)) == 1 and BY_NAME[types[0]].block_items > 1
    }


def _rotated_part(keys: Keys, head_dim: int) -> float:
    """The rotated share of a head, rounded so that its product with the length of a head is not too
    small."""
    rotated = keys.whole("{arch}.rope.dimension_count", head_dim)
    if not 1 <= rotated <= head_dim:
        raise keys.error("{arch}.rope.dimension_count", f"from 1 to the {head_dim} of a head")
    part = rotated / head_dim
    return part if int(head_dim * part) == rotated else math.nextafter(part, 1.0)


def _rope_scaling(keys: Keys, theta: float) -> Config | None:
    """`rope_scaling` of config.json. As in llama.cpp, a file without a type is of type linear, and
    a factor that is absent or 0 is 1."""
    if keys.tensor("rope_freqs.weight") is not None:
        return llama3_scaling(keys, theta)
    kind = keys.text("{arch}.rope.scaling.type")
    factors = (keys.tensor(f"rope_factors_{part}.weight") for part in ("long", "short"))
    if any(tensor is not None for tensor in factors):
        if kind not in (None, "none", "", "longrope"):
            raise keys.error("{arch}.rope.scaling.type", "longrope, as there are rope_factors")
        return longrope_scaling(keys)
    if kind == "none":
        return None
    old = keys.number("{arch}.rope.scale_linear", 0.0)  # of older files
    factor = keys.number("{arch}.rope.scaling.factor", old) or 1.0
    if kind == "yarn":
        return yarn_scaling(keys, factor)
    if kind in (None, "", "linear") and factor == 1.0:
        return None
    return {"rope_type": kind or "linear", "factor": factor, **original_length(keys)}


_POOLINGS = {1: "mean", 2: "cls", 3: "lasttoken"}
"""Source: llama.cpp, `llama_pooling_type`; 0: the model generates."""


def sentence_files(keys: Keys) -> dict[str, str]:
    """Files of sentence-transformers by name, for an embedder; empty for a model that generates."""
    mode = _POOLINGS.get(keys.whole("{arch}.pooling_type", 0))
    if mode is None:
        return {}
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    files = {"1_Pooling/config.json": json.dumps({"pooling_mode": mode})}
    for name, folder in DENSE_FOLDERS.items():
        tensor = keys.tensor(f"{name}.weight")
        if tensor is not None:
            if len(tensor.shape) != 2:
                raise CheckpointError(f"{keys.path}: {name}.weight must be a matrix")
            kinds[folder] = "Dense"
            settings = {
                "in_features": tensor.shape[1],
                "out_features": tensor.shape[0],
                "bias": False,
                "activation_function": "torch.nn.modules.linear.Identity",
            }
            files[f"{folder}/config.json"] = json.dumps(settings)
    kinds["4_Normalize"] = "Normalize"
    modules = [
        {"path": path, "type": f"sentence_transformers.models.{kind}"}
        for path, kind in kinds.items()
    ]
    return {"modules.json": json.dumps(modules, indent=2), **files}


_SAMPLING = {
    "temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}  # fmt: skip


def generation_config(keys: Keys, tokens: list[str]) -> Config:
    """Tokens that end a text, those that are never generated, and the sampling that the file
    recommends."""
    found: dict[str, Any] = {"eos_token_id": end_token_ids(keys, tokens)}
    suppressed = keys.token_ids("suppress_tokens")
    if suppressed := [one for one in suppressed if 0 <= one < len(tokens)]:  # as in llama.cpp
        found["suppress_tokens"] = suppressed
    for name, ours in _SAMPLING.items():
        if keys.value(f"general.sampling.{name}") is not None:
            found[ours] = keys.number(f"general.sampling.{name}")
    if "top_k" in found:
        found["top_k"] = keys.whole("general.sampling.top_k")
    return found
