"""`read_whisper`: a file of CTranslate2 or whisper.cpp as config.json and tensors of transformers.

Every tensor that the configuration needs is found with its shape, and the file has no others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from quire.config.whisper.ctranslate2 import Ct2File, read_ct2
from quire.config.whisper.ggml import GgmlFile, is_ggml, read_ggml
from quire.config.whisper.names import Named, Place, Shape, tensors_of
from quire.errors import CheckpointError, UnsupportedModelError, quoted
from quire.gguf.block_types import BlockType
from quire.gguf.container import GgufTensor

_DTYPES = {"F32": "float32", "BF16": "bfloat16"}
_EMBEDDING = "model.decoder.embed_tokens.weight"
_FIXED = {
    "decoder/activation": 3, "decoder/alibi": 0, "decoder/pre_norm": 1,
    "decoder/scale_embeddings": 0, "decoder/start_from_zero_embedding": 0,
}  # fmt: skip
"""Numbers of CTranslate2 that describe how a decoder computes, and their values for Whisper."""
_LAYER = re.compile(r"(encoder|decoder)/layer_(\d+)/")
_MOST_LAYERS = 1 << 12


@dataclass(frozen=True, slots=True)
class Scales:
    """The numbers by which codes are divided: one, or one for each row."""

    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class WhisperTensor:
    """A tensor of the file."""

    shape: Shape
    type: BlockType
    offset: int
    """Offset of its first byte from the start of the file."""
    num_bytes: int
    scales: Scales | None = None
    """None: the tensor does not have codes of CTranslate2."""
    is_held: bool = False
    """Whether a model multiplies by the codes themselves."""


@dataclass(frozen=True, slots=True)
class WhisperFile:
    """A model in a file."""

    path: Path
    config: dict[str, Any]
    tensors: Mapping[str, WhisperTensor] = field(repr=False)
    tokens: Iterable[bytes] | None
    """The vocabulary without special tokens; None: the file has none."""


def read_whisper(path: Path) -> WhisperFile:
    """Raises CheckpointError or UnsupportedModelError; reads no weights."""
    if is_ggml(path):
        ggml = read_ggml(path)
        config = _ggml_config(ggml)
        tensors = {one.name: _of_ggml(ggml, one) for one in tensors_of(config)}
        used = {one.ggml.array for one in tensors_of(config)}
        _check_all_used(path, ggml.tensors, used)
        return WhisperFile(path, _completed(path, config, tensors), tensors, ggml.tokens)
    file = read_ct2(path)
    config = _ct2_config(file)
    tensors = {one.name: _of_ct2(file, one) for one in tensors_of(config)}
    used = {one.ct2.array for one in tensors_of(config)}
    used |= {f"{name}_scale" for name in used}
    names = {file.aliases.get(name, name) for name in used} | set(file.numbers)
    _check_all_used(path, file.arrays, names)
    return WhisperFile(path, _completed(path, config, tensors), tensors, None)


def _check_all_used(path: Path, found: Iterable[str], used: set[str]) -> None:
    if others := sorted(set(found) - used):
        raise UnsupportedModelError(
            f"{path}: {quoted(others[0])} does not belong to a Whisper model ({len(others)} such)"
        )


def _ggml_config(file: GgmlFile) -> dict[str, Any]:
    sizes = {key: size for key, size in file.sizes.items() if key != "text_width"}
    for side in ("encoder", "decoder"):
        name = f"{side}.blocks.0.mlp.0.weight"
        sizes[f"{side}_ffn_dim"] = _matrix(file.path, file.tensors, name)[0]
    return sizes


def _ct2_config(file: Ct2File) -> dict[str, Any]:
    path, arrays = file.path, file.arrays
    for name, value in _FIXED.items():
        if file.numbers.get(name, value) != value:
            raise UnsupportedModelError(
                f"{path}: {name} is {file.numbers[name]}; it must be {value} in a Whisper model"
            )
    table = file.aliases.get("decoder/projection/weight")
    if table != "decoder/embeddings/weight":
        raise UnsupportedModelError(
            f"{path}: decoder/projection/weight must be another name of decoder/embeddings/weight"
        )
    config: dict[str, Any] = {"vocab_size": _matrix(path, arrays, table)[0]}
    kernel = arrays.get("encoder/conv1/weight")
    if kernel is None or len(kernel.shape) != 3:
        raise CheckpointError(f"{path} must have an array encoder/conv1/weight of 3 dimensions")
    config["d_model"], config["num_mel_bins"] = kernel.shape[:2]
    for side, length in (("encoder", "max_source_positions"), ("decoder", "max_target_positions")):
        positions = f"{side}/position_encodings/encodings"
        config[length] = _matrix(path, arrays, positions)[0]
        layers = {int(m[2]) for n in arrays if (m := _LAYER.match(n)) and m[1] == side}
        config[f"{side}_layers"] = len(layers)
        if len(layers) > _MOST_LAYERS or layers != set(range(len(layers))):
            raise CheckpointError(f"{path}: the layers of the {side} must be numbered from 0")
        name = f"{side}/layer_0/ffn/linear_0/weight"
        config[f"{side}_ffn_dim"] = _matrix(path, arrays, name)[0]
        heads = file.numbers.get(f"{side}/num_heads")
        if heads is None or heads < 1 or config["d_model"] % heads:
            raise CheckpointError(
                f"{path}: {side}/num_heads is {heads}; it must be a divisor of the model's width, "
                f"{config['d_model']}"
            )
        config[f"{side}_attention_heads"] = heads
    return config


def _matrix(path: Path, arrays: Mapping[str, GgufTensor], name: str) -> Shape:
    array = arrays.get(name)
    if array is None or len(array.shape) != 2:
        raise CheckpointError(f"{path} must have a matrix {name}")
    return array.shape


def _of_ggml(file: GgmlFile, wanted: Named) -> WhisperTensor:
    """whisper.cpp's biases of convolutions have a second dimension of 1."""
    tensor = file.tensors.get(wanted.ggml.array)
    if tensor is None:
        raise _missing(file.path, wanted.ggml.array)
    is_column = len(wanted.shape) == 1 and tensor.shape == (*wanted.shape, 1)
    if tensor.shape != wanted.shape and not is_column:
        raise _misfit(file.path, tensor, wanted.shape)
    return WhisperTensor(wanted.shape, tensor.type, tensor.offset, tensor.num_bytes)


def _of_ct2(file: Ct2File, wanted: Named) -> WhisperTensor:
    place = wanted.ct2
    name = file.aliases.get(place.array, place.array)
    array = file.arrays.get(name)
    if array is None:
        raise _missing(file.path, place.array)
    rows, *rest = wanted.shape
    if array.shape != (place.parts * rows, *rest):
        raise _misfit(file.path, array, (place.parts * rows, *rest))
    num_bytes = array.num_bytes // place.parts
    offset = array.offset + place.part * num_bytes
    scales = None
    if array.type.name in ("I8", "I16"):
        scales = _scales(file, name, place, rows)
    elif not array.type.is_of_weights:
        raise CheckpointError(f"{file.path}: array {name} has numbers of type {array.type.name}")
    is_held = scales is not None and array.type.name == "I8" and len(wanted.shape) == 2
    return WhisperTensor(
        wanted.shape, array.type, offset, num_bytes, scales, is_held and wanted.name != _EMBEDDING
    )


def _scales(file: Ct2File, name: str, place: Place, rows: int) -> Scales:
    scale = file.arrays.get(file.aliases.get(f"{name}_scale", f"{name}_scale"))
    if scale is None or scale.type.name != "F32":
        raise CheckpointError(f"{file.path}: {name} has codes, and must have scales in float32")
    count = prod(scale.shape)
    if count == 1:
        return Scales(scale.offset, 1)
    if count != place.parts * rows:
        raise CheckpointError(
            f"{file.path}: {name} has {count} scales; it must have 1, or {place.parts * rows}"
        )
    return Scales(scale.offset + 4 * place.part * rows, rows)


def _missing(path: Path, name: str) -> CheckpointError:
    return CheckpointError(f"{path} has no tensor {name}")


def _misfit(path: Path, tensor: GgufTensor, shape: Shape) -> CheckpointError:
    return CheckpointError(
        f"{path}: tensor {tensor.name} has shape {list(tensor.shape)}; by the model's sizes it "
        f"must have {list(shape)}"
    )


def _completed(
    path: Path, sizes: Mapping[str, Any], tensors: Mapping[str, WhisperTensor]
) -> dict[str, Any]:
    """config.json as transformers has it, with the format of quantised matrices."""
    for side in ("encoder", "decoder"):
        if sizes["d_model"] % sizes[f"{side}_attention_heads"]:
            raise CheckpointError(
                f"{path}: the width of the model, {sizes['d_model']}, must be a multiple of its "
                f"{sizes[f'{side}_attention_heads']} heads"
            )
    config: dict[str, Any] = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "is_encoder_decoder": True,
        "activation_function": "gelu",
        "scale_embedding": False,
        "tie_word_embeddings": True,
        "dtype": _DTYPES.get(tensors["model.encoder.conv1.weight"].type.name, "float16"),
        **sizes,
    }
    blocks = {
        name: tensor.type.name
        for name, tensor in tensors.items()
        if tensor.type.block_items > 1 and len(tensor.shape) == 2
    }
    if blocks:
        config["quantization_config"] = {"quant_method": "gguf", "types": blocks}
    elif any(tensor.is_held for tensor in tensors.values()):
        weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
        config["quantization_config"] = {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        }
    return config
