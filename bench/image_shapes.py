"""Shapes of models with an image encoder, to measure speed with random weights.

    python bench/image_shapes.py smolvlm-256m DIR --gguf BF16

Writes config.json, the settings of the image processor, a tokenizer of bytes and a chat template.
Engines make their own random weights; for those that need files, `--safetensors` writes a
checkpoint with the names of the published one, and `--gguf` the two files of llama.cpp, which needs
gguf-py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SMOLVLM: Mapping[str, Any] = {
    "config": {
        "architectures": ["Idefics3ForConditionalGeneration"], "model_type": "idefics3",
        "scale_factor": 4, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "text_config": {
            "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
            "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
            "head_dim": 64, "vocab_size": 49280, "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "hidden_act": "silu",
            "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
            "tie_word_embeddings": False,
        },
        "vision_config": {
            "model_type": "idefics3_vision", "hidden_size": 768, "intermediate_size": 3072,
            "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 512,
            "patch_size": 16,
        },
    },
    "settings": {
        "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 1,
        "size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512},
        "do_image_splitting": True, "image_processor_type": "Idefics3ImageProcessor",
        "processor_class": "Idefics3Processor",
    },
    "processor": {"image_seq_len": 64, "processor_class": "Idefics3Processor"},
    "place": "<image>",
    "tokens": {"image_token_id": "<image>"},
    "special": [
        "<fake_token_around_image>", "<image>", "<global-img>", "<end_of_utterance>",
        *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
    ],
}  # fmt: skip
_QWEN2_VL: Mapping[str, Any] = {
    "config": {
        "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl",
        "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "text_config": {
            "model_type": "qwen2_vl_text", "hidden_size": 1536, "intermediate_size": 8960,
            "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2,
            "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu",
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24],
            },
            "tie_word_embeddings": True,
        },
        "vision_config": {
            "model_type": "qwen2_vl", "depth": 32, "embed_dim": 1280, "hidden_size": 1536,
            "mlp_ratio": 4, "num_heads": 16, "patch_size": 14, "spatial_merge_size": 2,
            "temporal_patch_size": 2, "hidden_act": "quick_gelu", "in_channels": 3,
        },
    },
    "settings": {
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "size": {"shortest_edge": 3136, "longest_edge": 12845056},
        "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2,
        "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor",
    },
    "processor": {"processor_class": "Qwen2VLProcessor"},
    "place": "<|vision_start|><|image_pad|><|vision_end|>",
    "tokens": {
        "image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>",
    },
    "special": ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"],
}  # fmt: skip
SHAPES: Mapping[str, Mapping[str, Any]] = {"smolvlm-256m": _SMOLVLM, "qwen2-vl-2b": _QWEN2_VL}
"""The shapes of SmolVLM-256M-Instruct and Qwen2-VL-2B-Instruct."""
_TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}PLACE{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}"
)
_DEVIATION = 0.02
_ROWS = 64
"""Rows of random numbers, which a matrix repeats."""
Floats = NDArray[np.float32]


def write_shape(name: str, path: Path) -> Path:
    """Writes everything but weights. Raises KeyError for an unknown shape."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    shape = SHAPES[name]
    path.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={one: i for i, one in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<eos>", *shape["special"]]
    tokenizer.add_special_tokens([AddedToken(one, normalized=False, special=True) for one in names])
    tokenizer.save(str(path / "tokenizer.json"))
    ids = {key: tokenizer.token_to_id(token) for key, token in shape["tokens"].items()}
    template = _TEMPLATE.replace("PLACE", shape["place"])
    _write(path / "config.json", {**shape["config"], **ids})
    _write(path / "preprocessor_config.json", shape["settings"])
    _write(path / "processor_config.json", shape["processor"])
    settings = {"eos_token": "<eos>", "tokenizer_class": "PreTrainedTokenizerFast"}
    _write(path / "tokenizer_config.json", {**settings, "chat_template": template})
    (path / "chat_template.jinja").write_text(template)
    return path


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1))


def tensors(path: Path) -> dict[str, Floats]:
    """The tensors of the published checkpoint by name: zeros, which take no memory."""
    from quire.config.checkpoint.model_files import read_config
    from quire.models import build_program
    from quire.models.media.families import vision_model
    from quire.models.media.settings import with_image_processor
    from quire.models.media.tower import PATCHES, VISION
    from quire.weights.dummy import DummyStore

    config = read_config(path)
    vision = vision_model(with_image_processor(config, path))
    assert vision is not None
    text = DummyStore(build_program(config))
    found = {name: text.describe(name).shape for name in text.names()}
    for program in filter(None, (vision.tower, vision.projector)):
        for part in (part for param in program.params() for part in param.parts):
            if not part.name.endswith(PATCHES):
                root, _, rest = part.name.partition(".")
                is_tower = f"{root}." == VISION
                prefix = (vision.prefixes if is_tower else vision.projector_prefixes)[0]
                found[prefix.replace("model.visual.", "visual.") + rest] = part.shape
    kernel = _kernel(config["vision_config"])
    return {
        name: np.broadcast_to(np.float32(0), (shape[0], *kernel) if _is_kernel(name) else shape)
        for name, shape in found.items()
    }


def _is_kernel(name: str) -> bool:
    return name.endswith(("patch_embedding.weight", "patch_embed.proj.weight"))


def _kernel(vision: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of the first convolution, without its outputs."""
    frames = (vision["temporal_patch_size"],) if "temporal_patch_size" in vision else ()
    return 3, *frames, vision["patch_size"], vision["patch_size"]


def write_safetensors(path: Path) -> None:
    """A checkpoint in bfloat16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    found = tensors(path)
    for name, array in found.items():
        end = begin + 2 * array.size
        header[name] = {
            "dtype": "BF16", "shape": list(array.shape), "data_offsets": [begin, end],
        }  # fmt: skip
        begin = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with (path / "model.safetensors").open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for number, array in enumerate(found.values()):
            file.write(numbers(array.shape, number).tobytes())


def numbers(shape: tuple[int, ...], seed: int) -> NDArray[np.uint16]:
    """Small random numbers in bfloat16; norms and biases are ones."""
    if len(shape) == 1:
        return np.full(shape, 0x3F80, np.uint16)
    rows = min(shape[0], _ROWS)
    some = np.random.default_rng(seed).normal(0, _DEVIATION, (rows, *shape[1:]))
    bits = (some.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.resize(bits, shape)


def write_gguf(path: Path, mix: str) -> Path:
    """The files `MIX.gguf` and `mmproj-MIX.gguf`. Returns the first. Existing files are kept."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fakes"))
    import gguf
    from gguf_images import ImagesModel

    model = ImagesModel(path)
    model.tensors = tensors(path)
    text, projector = path / f"{mix}.gguf", path / f"mmproj-{mix}.gguf"
    parts: dict[Path, tuple[Callable[[Path], Any], Callable[[], Iterator[tuple[str, Floats]]]]] = {
        text: (model.text_writer, model.text_tensors),
        projector: (model.projector_writer, model.projector_tensors),
    }
    for file, (begin, stored) in parts.items():
        if not file.exists():
            part = file.with_suffix(".part")
            _write_tensors(begin(part), stored, gguf, mix)
            part.rename(file)
    return text


def _write_tensors(writer: Any, stored: Callable[[], Any], gguf: Any, mix: str) -> None:
    """Tensor by tensor: never more than one is in memory."""
    shapes = [(name, array.shape) for name, array in stored()]
    for name, shape in shapes:
        kind = gguf.GGMLQuantizationType[_kind(name, shape, mix)]
        size = gguf.quant_shape_to_byte_shape(shape, kind)
        writer.add_tensor_info(name, size, np.dtype(np.uint8), int(np.prod(size)), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for number, (name, shape) in enumerate(shapes):
        bits = numbers(shape, number)
        kind = _kind(name, shape, mix)
        if kind != "BF16":
            wide = (bits.astype(np.uint32) << 16).view(np.float32)
            bits = wide if kind == "F32" else wide.astype(np.float16)
        writer.write_tensor_data(np.ascontiguousarray(bits).reshape(-1).view(np.uint8))
    writer.close()


def _kind(name: str, shape: tuple[int, ...], mix: str) -> str:
    is_exact = len(shape) == 1 or "patch_embd" in name or "position_embd" in name
    return "F32" if is_exact else mix


def main() -> int:
    """Writes the shape that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--safetensors", action="store_true", help="also weights")
    parser.add_argument("--gguf", choices=("BF16", "F16"), help="also files of llama.cpp")
    args = parser.parse_args()
    write_shape(args.shape, args.directory)
    if args.safetensors:
        write_safetensors(args.directory)
    if args.gguf:
        write_gguf(args.directory, args.gguf)
    return 0


if __name__ == "__main__":
    sys.exit(main())
