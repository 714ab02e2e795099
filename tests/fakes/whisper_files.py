"""Writes one random Whisper model in three forms: as transformers, CTranslate2 and whisper.cpp do.

Names are made here by rules of their own, not by those of the readers.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, processors
from trained_tokenizers import TEXTS, byte_level

Floats = NDArray[np.float32]

_SIZES = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 96, "num_mel_bins": 8,
    "max_source_positions": 20, "max_target_positions": 24,
}  # fmt: skip
_NAMES = (
    "<|endoftext|> <|startoftranscript|> <|en|> <|zh|> <|de|> <|translate|> <|transcribe|> "
    "<|startoflm|> <|startofprev|> <|nospeech|> <|notimestamps|>"
)
_SPECIALS = _NAMES.split()
_TIMES = [f"<|{0.02 * index:.2f}|>" for index in range(1501)]


@dataclass(frozen=True)
class Model:
    """A model: its config.json, tensors by transformers' names, and tokenizer."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Floats]
    tokenizer: Tokenizer
    words: Sequence[str]
    """The vocabulary without special tokens, in GPT-2's letters."""

    @property
    def end(self) -> int:
        """The id of the first special token."""
        return len(self.words)


def random_model(seed: int = 0, num_words: int = 500, **sizes: int) -> Model:
    """With two layers and a small vocabulary unless `sizes` say otherwise."""
    whole = json.loads(byte_level(num_words + 3).to_str())
    added = {one["content"] for one in whole.pop("added_tokens")}
    ids = whole["model"]["vocab"]
    words = [text for text in sorted(ids, key=ids.__getitem__) if text not in added]
    whole["model"]["vocab"] = {word: id for id, word in enumerate(words)}
    tokenizer = Tokenizer.from_str(json.dumps({**whole, "added_tokens": []}))
    tokenizer.add_special_tokens([AddedToken(one, normalized=False) for one in _SPECIALS])
    frame = ["<|startoftranscript|>", "<|notimestamps|>", "<|endoftext|>"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*frame[:2], "$A", frame[2]],
        pair=[*frame[:2], "$A", "$B", frame[2]],
        special_tokens=[(one, tokenizer.token_to_id(one)) for one in frame],
    )
    vocab_size = len(words) + len(_SPECIALS) + len(_TIMES)
    config = {**_SIZES, "vocab_size": vocab_size, **sizes}
    random = np.random.default_rng(seed)
    tensors = {
        name: random.normal(0, 0.1, shape).astype(np.float16).astype(np.float32)
        for name, shape in _shapes(config).items()
    }
    return Model(config, tensors, tokenizer, words)


def _shapes(config: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    dim = config["d_model"]
    found: dict[str, tuple[int, ...]] = {
        "encoder.conv1.weight": (dim, config["num_mel_bins"], 3), "encoder.conv1.bias": (dim,),
        "encoder.conv2.weight": (dim, dim, 3), "encoder.conv2.bias": (dim,),
        "encoder.embed_positions.weight": (config["max_source_positions"], dim),
        "decoder.embed_positions.weight": (config["max_target_positions"], dim),
        "decoder.embed_tokens.weight": (config["vocab_size"], dim),
    }  # fmt: skip
    for side, kinds in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "encoder_attn"])):
        wide = config[f"{side}_ffn_dim"]
        for layer in range(config[f"{side}_layers"]):
            start = f"{side}.layers.{layer}."
            for kind in kinds:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    found[f"{start}{kind}.{part}.weight"] = (dim, dim)
                    if part != "k_proj":
                        found[f"{start}{kind}.{part}.bias"] = (dim,)
                found |= _norm(f"{start}{kind}_layer_norm", dim)
            found |= {f"{start}fc1.weight": (wide, dim), f"{start}fc1.bias": (wide,)}
            found |= {f"{start}fc2.weight": (dim, wide), f"{start}fc2.bias": (dim,)}
            found |= _norm(f"{start}final_layer_norm", dim)
        found |= _norm(f"{side}.layer_norm", dim)
    return {f"model.{name}": shape for name, shape in found.items()}


def _norm(name: str, dim: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (dim,), f"{name}.bias": (dim,)}


def write_hf(directory: Path, model: Model, dtype: str = "float32") -> Path:
    """As transformers does, with timestamps among the added tokens."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file({n: a.astype(dtype) for n, a in model.tensors.items()},
              directory / "model.safetensors")  # fmt: skip
    config = {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper"}
    (directory / "config.json").write_text(json.dumps({**config, **model.config}))
    whole = Tokenizer.from_str(model.tokenizer.to_str())
    whole.add_tokens([AddedToken(one, normalized=False) for one in _TIMES])
    whole.save(str(directory / "tokenizer.json"))
    return directory


# CTranslate2


def write_ct2(
    directory: Path, model: Model, kind: str = "float32", *, has_tokenizer: bool = True
) -> Path:
    """As CTranslate2 does, with quantisation `kind` of matrices."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.bin").write_bytes(ct2_file(ct2_arrays(model, kind)))
    own = {"alignment_heads": [[1, 0], [2, 3]], "suppress_ids": [1, 2, 7], "lang_ids": [513],
           "suppress_ids_begin": [220]}  # fmt: skip
    (directory / "config.json").write_text(json.dumps(own))
    tokens = [*model.words, *_SPECIALS, *_TIMES]
    (directory / "vocabulary.json").write_text(json.dumps(tokens))
    if has_tokenizer:
        model.tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def ct2_arrays(model: Model, kind: str = "float32") -> dict[str, NDArray[Any]]:
    """The arrays of a file. bfloat16 is written as 2-byte numbers of type uint16."""
    found: dict[str, NDArray[Any]] = {
        "decoder/activation": np.int8(3), "decoder/alibi": np.int8(0),
        "decoder/pre_norm": np.int8(1), "decoder/alignment_layer": np.int16(-1),
        "decoder/num_heads": np.int16(model.config["decoder_attention_heads"]),
        "encoder/num_heads": np.int16(model.config["encoder_attention_heads"]),
    }  # fmt: skip
    for name, array in _fused(model).items():
        is_matrix = name.endswith("/weight")
        if is_matrix and kind == "int16":
            scale = np.float32(2**10 / np.abs(array).max())
            found[name], found[f"{name}_scale"] = np.rint(array * scale).astype(np.int16), scale
        elif is_matrix and kind == "int8":
            flat = array.reshape(len(array), -1)
            rows = (127 / np.abs(flat).max(axis=1)).astype(np.float32)
            codes = np.rint(flat * rows[:, None]).astype(np.int8)
            found[name], found[f"{name}_scale"] = codes.reshape(array.shape), rows
        elif kind == "bfloat16":
            found[name] = (array.view(np.uint32) >> 16).astype(np.uint16)
        else:
            found[name] = array.astype("float16" if kind == "float16" else "float32")
    return dict(sorted(found.items()))


def _fused(model: Model) -> dict[str, Floats]:
    fused: dict[str, list[Floats]] = {}
    for name, array in model.tensors.items():
        name = name.removeprefix("model.").replace(".layers.", "/layer_")
        name = name.replace("embed_positions.weight", "position_encodings.encodings")
        name = name.replace("embed_tokens", "embeddings")
        for kind, own in (("self_attn", "self_attention"), ("encoder_attn", "attention")):
            name = name.replace(f"{kind}_layer_norm", f"{own}.layer_norm")
            order = {"q_proj": 0, "k_proj": 0, "v_proj": 0, "out_proj": 1}
            if kind == "encoder_attn":
                order = {"q_proj": 0, "k_proj": 1, "v_proj": 1, "out_proj": 2}
            for part, place in order.items():
                name = name.replace(f"{kind}.{part}", f"{own}.linear_{place}")
        name = name.replace("final_layer_norm", "ffn.layer_norm")
        name = name.replace("fc1", "ffn.linear_0").replace("fc2", "ffn.linear_1")
        if "layer_norm." in name:
            name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        name = name.replace(".", "/")
        found = fused.setdefault(name, [])
        if name.endswith("/bias") and "attention/linear" in name and array.ndim == 1:
            _add_key_bias(name, found, array)
        found.append(array)
    return {name: np.concatenate(parts) for name, parts in fused.items()}


def _add_key_bias(name: str, found: list[Floats], array: Floats) -> None:
    """The zeros between the biases of queries and values, and before those of values."""
    is_second = "self_attention" in name and len(found) == 1
    is_cross = "/attention" in name and "linear_1" in name and not found
    if (is_second and "linear_0" in name) or is_cross:
        found.append(np.zeros_like(array))


_CODES = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4, "uint16": 5}


def ct2_file(arrays: Mapping[str, NDArray[Any]], spec: str = "WhisperSpec") -> bytes:
    """The bytes of a `model.bin`."""
    parts = [struct.pack("<I", 6), _text(spec), struct.pack("<II", 3, len(arrays))]
    for name, array in arrays.items():
        array = np.asarray(array)
        shape = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        kind = struct.pack("<BI", _CODES[array.dtype.name], array.nbytes)
        parts += [_text(name), shape, kind, array.tobytes()]
    alias = _text("decoder/projection/weight") + _text("decoder/embeddings/weight")
    return b"".join([*parts, struct.pack("<I", 1), alias])


def _text(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


# whisper.cpp

_GGML_NAMES = [
    (r"^model\.", ""), (r"\.layers\.", ".blocks."), (r"self_attn_layer_norm", "attn_ln"),
    (r"encoder_attn_layer_norm", "cross_attn_ln"), (r"final_layer_norm", "mlp_ln"),
    (r"^encoder\.layer_norm", "encoder.ln_post"), (r"^decoder\.layer_norm", "decoder.ln"),
    (r"embed_positions\.weight", "positional_embedding"), (r"embed_tokens", "token_embedding"),
    (r"self_attn", "attn"), (r"encoder_attn", "cross_attn"), (r"q_proj", "query"),
    (r"k_proj", "key"), (r"v_proj", "value"), (r"out_proj", "out"), (r"fc1", "mlp.0"),
    (r"fc2", "mlp.2"),
]  # fmt: skip
_FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9}
_GGML_SIZES = (
    "vocab_size", "max_source_positions", "d_model", "encoder_attention_heads", "encoder_layers",
    "max_target_positions", "d_model", "decoder_attention_heads", "decoder_layers", "num_mel_bins",
)  # fmt: skip


def write_ggml(
    path: Path, model: Model, kind: str = "F16", *, has_empty_token: bool = False
) -> Path:
    """As whisper.cpp's converter and `quantize` do. A matrix whose rows are no whole blocks keeps
    F16."""
    number = _FILE_TYPES[kind] + (2000 if kind.startswith("Q") else 0)
    sizes = [model.config[key] for key in _GGML_SIZES]
    bins = model.config["num_mel_bins"]
    parts = [b"lmgg", struct.pack("<11i", *sizes, number), struct.pack("<2i", bins, 201)]
    parts.append(np.zeros(bins * 201, np.float32).tobytes())
    words = [_bytes_of(word) for word in model.words] + ([b""] if has_empty_token else [])
    parts.append(struct.pack("<i", len(words)))
    parts += [struct.pack("<i", len(word)) + word for word in words]
    for name, array in model.tensors.items():
        for pattern, other in _GGML_NAMES:
            name = re.sub(pattern, other, name)
        parts.append(_ggml_tensor(name, array, kind))
    path.write_bytes(b"".join(parts))
    return path


def _ggml_tensor(name: str, array: Floats, kind: str) -> bytes:
    if re.search(r"conv\d\.bias", name):
        array = array[:, None]
    is_plain = array.ndim < 2 or "positional" in name or "bias" in name
    own = "F32" if is_plain else "F16" if array.ndim > 2 and kind != "F32" else kind
    if own.startswith("Q") and array.shape[-1] % 32:
        own = "F16"
    type = GGMLQuantizationType[own]
    data = quants.quantize(np.ascontiguousarray(array), type)
    head = struct.pack("<3i", array.ndim, len(name), int(type))
    return (
        head
        + struct.pack(f"<{array.ndim}i", *reversed(array.shape))
        + name.encode()
        + data.tobytes()
    )


def _bytes_of(word: str) -> bytes:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = sorted({*range(256)} - printable)
    return bytes(ord(c) if ord(c) in printable else others[ord(c) - 256] for c in word)


def texts(count: int, seed: int = 0) -> list[str]:
    """Random texts of words, letters and special characters in several alphabets."""
    random = np.random.default_rng(seed)
    words = [*" ".join(TEXTS).split(), "\n", "  ", "\t", "♪", "'s", "½", "a" * 40, "42"]
    joins = [" ", "", "  ", "\n"]
    return [
        "".join(
            str(random.choice(words)) + str(random.choice(joins, p=[0.7, 0.15, 0.1, 0.05]))
            for _ in range(random.integers(1, 20))
        )
        for _ in range(count)
    ]
