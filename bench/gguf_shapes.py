"""Writes a GGUF file of a shape with experts, with random weights, for engines that need a file.

    python bench/gguf_shapes.py olmoe-1b-7b Q4_K_M FILE.gguf
    python bench/peers.py --no-quire --model FILE.gguf --workloads decode,prefill-512,batch-32
        --peer quire=python --option quire='{"quantization": "gguf_a8"}'
        --peer llamacpp=/venvs/llamacpp/bin/python --peer ik=/venvs/ik/bin/python

Needs gguf-py. The file is one of `qwen3moe`, which every engine knows: OLMoE's own has norms over
the whole width of q and k instead of those of each head, and the same matrices.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from shapes import SHAPES

from quire.models import build_program
from quire.weights import HostTensor
from quire.weights.dummy import DummyStore

MIXES = {"Q4_0": ("Q4_0", "Q6_K"), "Q8_0": ("Q8_0", "Q8_0"), "Q4_K_M": ("Q4_K", "Q6_K")}
"""The type of most matrices, and that of the head. Q4_K_M has the second in some of the others."""
_TABLE = "token_embd.weight"
_EXPERTS = ("gate", "up", "down")
Array = NDArray[Any]


def write(shape: Mapping[str, Any], mix: str, path: Path) -> None:
    """Layer by layer: never more than one tensor is in memory."""
    config = _config(shape, mix)
    store = DummyStore(build_program(config))
    writer = gguf.GGUFWriter(path, "qwen3moe")
    _write_keys(writer, config)
    tensors = list(_tensors(config, store))
    for name, kind, dims, _ in tensors:
        size = gguf.quant_shape_to_byte_shape(dims, kind)
        writer.add_tensor_info(name, size, np.dtype(np.uint8), int(np.prod(size)), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for *_, read in tensors:
        writer.write_tensor_data(read())
    writer.close()


def _config(shape: Mapping[str, Any], mix: str) -> dict[str, Any]:
    """Configuration of a Qwen3 model, with the type of each matrix."""
    most, head = MIXES[mix]
    layers = shape["num_hidden_layers"]
    types = {"*": most, "lm_head.weight": head}
    for layer in range(layers) if mix == "Q4_K_M" else ():
        # llama.cpp's use_more_bits
        if layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2:
            types[f"model.layers.{layer}.self_attn.v_proj.weight"] = head
            types[f"model.layers.{layer}.mlp.experts.*.down_proj.weight"] = head
    width = shape.get("moe_intermediate_size", shape["intermediate_size"])
    head_dim = shape.get("head_dim", shape["hidden_size"] // shape["num_attention_heads"])
    return {
        "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "hidden_act": "silu", **shape,
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": head_dim,
        "moe_intermediate_size": width, "norm_topk_prob": True,
        "quantization_config": {"quant_method": "gguf", "types": types},
    }  # fmt: skip


def _write_keys(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    tokens = ["t", "o", "to"]
    tokens += [f"tok{i}" for i in range(len(tokens), config["vocab_size"])]
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges(["t o"])
    writer.add_eos_token_id(len(tokens) - 1)


_Stored = tuple[str, gguf.GGMLQuantizationType, tuple[int, ...], Callable[[], Array]]


def _tensors(config: Mapping[str, Any], store: DummyStore) -> Iterator[_Stored]:
    """Name, type, shape, and how its bytes are made."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3MOE, config["num_hidden_layers"])
    for name in store.names():
        if ".experts." not in name:
            yield _stored(names.get_name(name, (".weight",)), [name], store)
        elif ".experts.0.gate" in name:
            layer = name.split(".")[2]
            for what in _EXPERTS:
                each = [
                    name.replace("experts.0.gate", f"experts.{expert}.{what}")
                    for expert in range(config["num_experts"])
                ]
                yield _stored(f"blk.{layer}.ffn_{what}_exps.weight", each, store)


def _stored(name: str, parts: list[str], store: DummyStore) -> _Stored:
    first = store.stored(parts[0])
    plain = "BF16" if name == _TABLE else "F32"
    kind = gguf.GGMLQuantizationType[first.block_type.name if first.block_type else plain]
    dims = first.shape if len(parts) == 1 else (len(parts), *first.shape)
    return name, kind, dims, lambda: np.concatenate([_bytes(store.stored(p)) for p in parts])


def _bytes(tensor: HostTensor) -> Array:
    """Norms are ones; routers are float32."""
    if tensor.block_type is not None or tensor.name == "model.embed_tokens.weight":
        return tensor.data
    if len(tensor.shape) == 1:
        return np.ones(tensor.shape, np.float32).view(np.uint8)
    return tensor.to_float32().reshape(-1).view(np.uint8)


def main() -> int:
    """Writes the file that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("mix", choices=sorted(MIXES))
    parser.add_argument("file", type=Path)
    args = parser.parse_args()
    write(SHAPES[args.shape], args.mix, args.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
