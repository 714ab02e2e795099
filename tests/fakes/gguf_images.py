"""GGUF files of models with images: that of the text model and the `mmproj` file, written from a
checkpoint of transformers with float32 numbers, as llama.cpp's conversion does it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf_gemma import GemmaFile
from numpy.typing import NDArray
from safetensors.numpy import load_file

Floats = NDArray[np.float32]
Named = Iterator[tuple[str, Floats]]

_TEXT = re.compile(
    r"(?:(?:model\.)?(?:language_model|text_model)\.(?:model\.)?|model\.(?=embed_tokens|layers|norm))(.+)"
)
_ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen2_vl_text": "qwen2vl",
    "qwen2_5_vl_text": "qwen2vl", "qwen3_vl_text": "qwen3vl", "qwen3_vl_moe_text": "qwen3vlmoe",
    "gemma3_text": "gemma3", "gemma4_text": "gemma4", "gemma4_unified_text": "gemma4",
}  # fmt: skip
_PERMUTED = ("q_proj.weight", "k_proj.weight")


class ImagesModel:
    """The two files of one checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        self.config = json.loads((checkpoint / "config.json").read_text())
        self.settings = json.loads((checkpoint / "preprocessor_config.json").read_text())
        self.tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
        self.tensors: dict[str, Floats] = {}
        for file in sorted(checkpoint.glob("*.safetensors")):
            self.tensors |= load_file(file)
        self.text = self.config["text_config"]

    def write(self, directory: Path) -> Path:
        """Writes both files. Returns that of the text model."""
        directory.mkdir(parents=True, exist_ok=True)
        self.write_projector(directory / "mmproj-model-f32.gguf")
        return self.write_text(directory / "model.gguf")

    def write_projector(
        self,
        path: Path,
        keys: dict[str, Any] | None = None,
        change: Callable[[str, Floats], Floats | None] = lambda _, one: one,
        rename: Callable[[str], str] = lambda name: name,
    ) -> Path:
        """`keys`: instead of those of the checkpoint. `change`: of a tensor by its name; None
        leaves it out."""
        writer = self.projector_writer(path, keys)
        for name, array in self.projector_tensors():
            changed = change(name, array)
            if changed is not None:
                writer.add_tensor(rename(name), np.ascontiguousarray(changed, np.float32))
        return _finished(writer, path)

    def projector_writer(self, path: Path, keys: dict[str, Any] | None = None) -> Any:
        """A writer of the `mmproj` file that has its metadata, and no tensor."""
        writer = gguf.GGUFWriter(path, "clip")
        for key, value in {**projector_keys(self.config, self.settings), **(keys or {})}.items():
            _add(writer, key, value)
        return writer

    def projector_tensors(self) -> Named:
        """The tensors of the `mmproj` file."""
        return projector_tensors(self.config, self.tensors)

    def write_text(self, path: Path) -> Path:
        """The text model."""
        writer = self.text_writer(path)
        for name, array in self.text_tensors():
            writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
        return _finished(writer, path)

    def text_writer(self, path: Path) -> Any:
        """A writer of the text model that has its metadata, and no tensor."""
        architecture = _ARCHITECTURES[self.text["model_type"]]
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in self._text_keys().items():
            _add(writer, f"{architecture}.{key}", value)
        self._add_vocabulary(writer)
        return writer

    def text_tensors(self) -> Named:
        """The tensors of the text model."""
        architecture = _ARCHITECTURES[self.text["model_type"]]
        if architecture == "gemma4":
            for name, array, _ in self._gemma4(dict(self._text_tensors(architecture))).stored:
                yield name, array
            return
        arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
        names = gguf.get_tensor_name_map(arch, self.text["num_hidden_layers"])
        for name, array in self._text_tensors(architecture):
            stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
            if stored is None:
                raise RuntimeError(f"gguf-py has no name for {name}")
            yield stored, array

    def _text_keys(self) -> dict[str, Any]:
        text = self.text
        rope = text.get("rope_parameters") or {}
        keys = {
            "context_length": text["max_position_embeddings"],
            "embedding_length": text["hidden_size"],
            "block_count": text["num_hidden_layers"],
            "feed_forward_length": text["intermediate_size"],
            "attention.head_count": text["num_attention_heads"],
            "attention.head_count_kv": text["num_key_value_heads"],
            "attention.layer_norm_rms_epsilon": text["rms_norm_eps"],
            "attention.key_length": text["head_dim"],
            "attention.value_length": text["head_dim"],
            "rope.freq_base": float(rope.get("rope_theta", 10000.0)),
        }
        if "mrope_section" in rope:
            keys["rope.dimension_sections"] = [*rope["mrope_section"], 0]
        if taps := self.config["vision_config"].get("deepstack_visual_indexes"):
            keys["n_deepstack_layers"] = len(taps)
        if text["model_type"] == "gemma3_text":
            keys["attention.sliding_window"] = text["sliding_window"]
            keys["rope.freq_base"] = 1e6
        if text["model_type"].startswith("gemma4"):
            own = self._gemma4({}).own_keys()
            return {**keys, **{key: value for key, value in own.items() if value is not None}}
        if "moe_intermediate_size" in text:
            keys |= {
                "expert_count": text.get("num_local_experts") or text["num_experts"],
                "expert_used_count": text["num_experts_per_tok"],
                "expert_feed_forward_length": text["moe_intermediate_size"],
            }
        return keys

    def _gemma4(self, tensors: dict[str, Floats]) -> GemmaFile:
        missing = {
            "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
            "use_double_wide_mlp": False,
        }  # fmt: skip
        return GemmaFile("gemma4", {**missing, **self.text}, tensors)

    def _text_tensors(self, architecture: str) -> Named:
        for stored, array in self.tensors.items():
            match = _TEXT.fullmatch(stored)
            name = match[1] if match else stored
            if match is None and name != "lm_head.weight":
                continue
            if not name.startswith("lm_head"):
                name = f"model.{name}"
            if architecture == "llama" and name.endswith(_PERMUTED):
                heads = "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
                array = _paired(array, self.text[heads])
            if architecture == "gemma3" and name.endswith("norm.weight"):
                array = array + np.float32(1)
            if ".mlp.experts." in name:
                yield from _expert_tensors(name, array)
            else:
                yield name, array

    def _add_vocabulary(self, writer: Any) -> None:
        vocabulary = dict(self.tokenizer["model"]["vocab"])
        special = {one["content"]: one["id"] for one in self.tokenizer["added_tokens"]}
        by_id = {number: token for token, number in (vocabulary | special).items()}
        # The one merge, and two line ends, which llama.cpp writes before a picture.
        tokens = [by_id[number] for number in range(len(by_id))] + ["qx", "ĊĊ"]
        tokens += [f"unused{number}" for number in range(len(tokens), self.text["vocab_size"])]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_types([3 if token in special else 1 for token in tokens])
        writer.add_token_merges(["q x"])
        writer.add_eos_token_id(special["<eos>"])


def _expert_tensors(name: str, array: Floats) -> Named:
    """Gate and up of all experts, or down, each [experts, rows, columns]."""
    stem = name.removesuffix(".weight").rpartition(".")[0]
    if "gate_up" not in name:
        yield f"{stem}.down_proj.weight", array.swapaxes(1, 2)
        return
    for part, half in zip(("gate_proj", "up_proj"), np.split(array, 2, axis=2), strict=True):
        yield f"{stem}.{part}.weight", half.swapaxes(1, 2)


def _paired(rows: Floats, heads: int) -> Floats:
    """Rows in the order of a rotation of neighbours."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def projector_keys(config: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The metadata of the `mmproj` file."""
    vision, kind = config["vision_config"], config["model_type"]
    if kind.startswith("gemma4"):
        return _gemma4_keys(config)
    is_qwen = kind.startswith("qwen")
    width = vision["embed_dim"] if "embed_dim" in vision else vision["hidden_size"]
    # Of Qwen2-VL, the conversion writes the text's width.
    mlp = vision["hidden_size"] if "embed_dim" in vision else vision["intermediate_size"]
    patch = vision["patch_size"]
    entries = vision.get("num_position_embeddings", 0)
    size = int(entries**0.5) * patch if entries else 560 if is_qwen else vision["image_size"]
    common = {
        "clip.has_vision_encoder": True,
        "clip.vision.projection_dim": config["text_config"]["hidden_size"],
        "clip.vision.image_size": size[0] if isinstance(size, list) else size,
        "clip.vision.patch_size": patch[0] if isinstance(patch, list) else patch,
        "clip.vision.embedding_length": width,
        "clip.vision.feed_forward_length": mlp,
        "clip.vision.block_count": vision["depth" if is_qwen else "num_hidden_layers"],
        "clip.vision.attention.head_count": vision[
            "num_heads" if is_qwen else "num_attention_heads"
        ],
        "clip.vision.attention.layer_norm_epsilon": vision.get("layer_norm_eps", 1e-6),
        "clip.vision.image_mean": settings["image_mean"],
        "clip.vision.image_std": settings["image_std"],
    }
    return {**common, **_KEYS[kind](config, settings)}


def _idefics3_keys(config: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "clip.projector_type": "idefics3",
        "clip.use_gelu": True,
        "clip.vision.projector.scale_factor": config["scale_factor"],
        "clip.vision.preproc_image_size": settings["size"]["longest_edge"],
    }


def _gemma3_keys(config: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    del settings
    vision = config["vision_config"]
    side = vision["image_size"] // vision["patch_size"]
    scale = side // int(config["mm_tokens_per_image"] ** 0.5)
    return {"clip.projector_type": "gemma3", "clip.use_gelu": True,
            "clip.vision.projector.scale_factor": scale}  # fmt: skip


def _gemma4_keys(config: dict[str, Any]) -> dict[str, Any]:
    vision, is_unified = config["vision_config"], config["model_type"].endswith("unified")
    return {
        "clip.has_vision_encoder": True,
        "clip.vision.projector_type": "gemma4uv" if is_unified else "gemma4v",
        "clip.vision.projection_dim": config["text_config"]["hidden_size"],
        "clip.vision.image_size": 224,
        "clip.vision.patch_size": vision["patch_size"],
        "clip.vision.embedding_length": vision["mm_embed_dim" if is_unified else "hidden_size"],
        "clip.vision.feed_forward_length": vision.get("intermediate_size", 0),
        "clip.vision.block_count": vision.get("num_hidden_layers", 0),
        "clip.vision.attention.head_count": vision.get("num_attention_heads", 0),
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.image_mean": [0.0, 0.0, 0.0],
        "clip.vision.image_std": [1.0, 1.0, 1.0],
    }


def _llava_keys(config: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    vision = config["vision_config"]
    if vision["model_type"] == "pixtral":
        return _pixtral_keys(config, settings)
    last = vision["num_hidden_layers"] - 1
    sizes = [side for size in config.get("image_grid_pinpoints", ()) for side in size]
    return {
        "clip.has_llava_projector": True,
        "clip.projector_type": "mlp",
        "clip.use_gelu": vision["model_type"].startswith("siglip"),
        "clip.vision.block_count": last,
        "clip.vision.feature_layer": [last],
        "clip.vision.projection_dim": 768,  # CLIP's own
        **({"clip.vision.image_grid_pinpoints": sizes} if sizes else {}),
    }


def _pixtral_keys(config: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    keys = {
        "clip.projector_type": "pixtral",
        f"clip.use_{config['vision_config']['hidden_act']}": True,
        "clip.vision.attention.layer_norm_epsilon": 1e-5,
        "clip.vision.image_size": settings["size"]["longest_edge"],
    }
    if "spatial_merge_size" in config:
        keys["clip.vision.spatial_merge_size"] = config["spatial_merge_size"]
    return keys


def _internvl_keys(config: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    del settings
    return {
        "clip.projector_type": "internvl",
        "clip.use_gelu": True,
        "clip.vision.projector.scale_factor": int(1 / config["downsample_ratio"]),
    }


def _qwen_keys(kind: str, config: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    vision, size = config["vision_config"], settings["size"]
    keys: dict[str, Any] = {
        "clip.projector_type": f"{kind}_merger",
        "clip.vision.image_min_pixels": size["shortest_edge"],
        "clip.vision.image_max_pixels": size["longest_edge"],
    }
    if kind == "qwen2.5vl":
        keys["clip.use_silu"] = True
        keys["clip.vision.n_wa_pattern"] = vision["fullatt_block_indexes"][0] + 1
        keys["clip.vision.window_size"] = vision["window_size"]
    if kind == "qwen3vl":
        taps = vision["deepstack_visual_indexes"]
        keys["clip.use_gelu"] = True
        keys["clip.vision.spatial_merge_size"] = vision["spatial_merge_size"]
        keys["clip.vision.is_deepstack_layers"] = [i in taps for i in range(vision["depth"])]
    return keys


_KEYS: dict[str, Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]] = {
    "idefics3": _idefics3_keys,
    "smolvlm": _idefics3_keys,
    "gemma3": _gemma3_keys,
    "llava": _llava_keys,
    "llava_next": _llava_keys,
    "mistral3": _pixtral_keys,
    "internvl": _internvl_keys,
    "qwen2_vl": partial(_qwen_keys, "qwen2vl"),
    "qwen2_5_vl": partial(_qwen_keys, "qwen2.5vl"),
    "qwen3_vl": partial(_qwen_keys, "qwen3vl"),
    "qwen3_vl_moe": partial(_qwen_keys, "qwen3vl"),
}

_RENAMED = (
    (".mm_input_projection_weight", ".mm_input_projection.weight"),
    ("multi_modal_projector.layer_norm.", "mlp1.0."),
    ("visual.merger.linear_fc1.", "visual.merger.mlp.0."),
    ("visual.merger.linear_fc2.", "visual.merger.mlp.2."),
    ("visual.merger.norm.", "visual.merger.ln_q."),
)
_LLAVA_LINEAR = {"linear_1": "0", "linear_2": "2"}
"""Names of the old surgery scripts; Pixtral's keep their numbers."""
_INTERN_LINEAR = {"linear_1": "1", "linear_2": "3"}
_MOST_LAYERS = 64
"""Of an image encoder."""


def projector_tensors(config: dict[str, Any], tensors: dict[str, Floats]) -> Named:
    """The tensors of the `mmproj` file."""
    kind, vision = config["model_type"], config["vision_config"]
    for stored, array in tensors.items():
        if _TEXT.fullmatch(stored) or stored == "lm_head.weight" or ".head." in stored:
            continue
        if kind.startswith("gemma4"):
            yield _gemma4_tensor(stored, array)
            continue
        name = stored.removeprefix("model.")
        if vision["model_type"] == "pixtral" and re.search(r"\.[qk]_proj\.", name):
            array = _paired(array, vision["num_attention_heads"])
        if name.endswith("mm_soft_emb_norm.weight"):
            array = array + np.float32(1)
        yield from _named(kind, vision, name, array)


def _named(kind: str, vision: dict[str, Any], name: str, array: Floats) -> Named:
    if ".qkv." in name and kind in ("qwen2_vl", "qwen2_5_vl"):
        for part, rows in zip("qkv", np.split(array, 3), strict=True):
            yield _name(name.replace("qkv", part)), rows
    elif name == "image_newline":
        yield "model.image_newline", array
    elif name == "visual.patch_embed.proj.weight":
        yield "v.patch_embd.weight", array[:, :, 0]
        yield "v.patch_embd.weight.1", array[:, :, 1]
    elif match := re.fullmatch(r"visual\.deepstack_merger_list\.(\d+)\.(?:linear_)?(.+)", name):
        layer = vision["deepstack_visual_indexes"][int(match[1])]
        yield f"v.deepstack.{layer}.{match[2]}", array
    elif match := re.fullmatch(r"multi_modal_projector\.(linear_[12])\.(\w+)", name):
        if kind == "internvl":
            yield f"mm.model.mlp.{_INTERN_LINEAR[match[1]]}.{match[2]}", array
        elif kind == "mistral3" or vision["model_type"] == "pixtral":
            yield f"mm.{match[1][-1]}.{match[2]}", array
        else:
            yield f"mm.{_LLAVA_LINEAR[match[1]]}.{match[2]}", array
    elif not _is_dropped(kind, vision, name):
        yield _name(name), array


_GEMMA4_UNIFIED = {
    "patch_dense": "v.patch_embd", "patch_ln1": "v.patch_norm.1", "patch_ln2": "v.patch_norm.2",
    "pos_norm": "v.patch_norm.3",
}  # fmt: skip


def _gemma4_tensor(name: str, array: Floats) -> tuple[str, Floats]:
    """Patches are read one channel after the other, and numbers are vectors."""
    array = array.reshape(array.shape or (1,))
    side = int((array.shape[-1] // 3) ** 0.5)
    if name.endswith("patch_embedder.input_proj.weight"):
        return "v.patch_embd.weight", array.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)
    if name.endswith("position_embedding_table"):
        return "v.position_embd.weight", array
    if name.endswith("pos_embedding"):
        return "v.position_embd.weight", array.swapaxes(0, 1)
    module, kind = name.split(".")[-2:]
    if module in _GEMMA4_UNIFIED:
        if module == "patch_ln1" or (module, kind) == ("patch_dense", "weight"):
            pixels = array.reshape(*array.shape[:-1], side, side, 3)
            array = np.moveaxis(pixels, -1, -3).reshape(array.shape)
        return f"{_GEMMA4_UNIFIED[module]}.{kind}", array
    name = name.replace("model.vision_tower.encoder.", "vision_model.model.")
    names = _projector_names()
    ends = (".weight", ".input_min", ".input_max", ".output_min", ".output_max")
    stored = names.get_name(name.replace(".linear.weight", ".weight"), try_suffixes=ends)
    if stored is None:
        raise RuntimeError(f"gguf-py has no name for {name}")
    return str(stored), array


@cache
def _projector_names() -> gguf.TensorNameMap:
    return gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, _MOST_LAYERS)


def _is_dropped(kind: str, vision: dict[str, Any], name: str) -> bool:
    """LLaVA's last layer, which is not computed, and what follows it."""
    last = f".layers.{vision.get('num_hidden_layers', 0) - 1}."
    is_unused = last in name or ".post_layernorm." in name
    return kind.startswith("llava") and vision["model_type"] != "pixtral" and is_unused


def _name(name: str) -> str:
    for old, new in _RENAMED:
        name = name.replace(old, new)
    if name.endswith(("class_embedding", "cls_token")):
        return "v.class_embd"
    if re.search(r"lambda_[12]$|position_embeddings$", name):
        name += ".weight"
    names = _projector_names()
    spellings = (name, f"model.{name}", name.replace("vision_tower.", "vision_tower.vision_model."))
    found = (names.get_name(one, try_suffixes=(".weight", ".bias")) for one in spellings)
    stored = next((one for one in found if one is not None), None)
    if stored is None:
        raise RuntimeError(f"gguf-py has no name for {name}")
    return str(stored)


def _add(writer: Any, key: str, value: Any) -> None:
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
             str: writer.add_string, list: writer.add_array}  # fmt: skip
    kinds[type(value)](key, value)


def _finished(writer: Any, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
