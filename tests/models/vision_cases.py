"""Tiny random checkpoints of the families with an image encoder, written for the tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from quire.models.media.model import VisionModel
from quire.models.media.pooled import PooledPatches
from quire.outputs import RequestOutput

_TEXT: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096,
    "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    "head_dim": 12, "model_type": "llama",
}  # fmt: skip
_VISION: dict[str, Any] = {
    "hidden_size": 36, "intermediate_size": 50, "num_hidden_layers": 3, "num_attention_heads": 3,
    "initializer_range": 0.2,
}  # fmt: skip
_CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
IDEFICS3_TEMPLATE = (
    "<eos>{% for message in messages %}{{ message['role'] | capitalize }}:"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% elif part['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)


def check_reply(model: Any, output: RequestOutput, num_tokens: int, **given: Any) -> None:
    """A greedy reply is that of transformers for the same prompt: the tokens, and the
    log-probabilities of the first one. `given`: what else the model reads of the prompt."""
    ids = torch.tensor([output.prompt_token_ids])
    with torch.no_grad():
        wanted = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens,
            do_sample=False, eos_token_id=None, pad_token_id=0, output_scores=True,
            return_dict_in_generate=True, **given,
        )  # fmt: skip
    found = output.outputs[0]
    assert list(found.token_ids) == wanted.sequences[0, ids.shape[1] :].tolist()
    assert found.logprobs
    logprobs = torch.log_softmax(wanted.scores[0][0], -1)
    for token_id, one in found.logprobs[0].items():
        assert abs(logprobs[token_id].item() - one.logprob) < 1e-3


def check_prompt(model: Any, output: RequestOutput, **given: Any) -> None:
    """The log-probabilities of the prompt's tokens, rows of images too, are transformers'."""
    ids = torch.tensor([output.prompt_token_ids])
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), **given).logits[0]
    wanted = torch.log_softmax(logits, -1)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    for row, told, token_id in zip(wanted, output.prompt_logprobs[1:], ids[0, 1:], strict=False):
        assert told is not None
        assert token_id.item() in told
        assert all(abs(row[one].item() - each.logprob) < 1e-3 for one, each in told.items())


def gemma4_values(vision: VisionModel, tiles: list[Any]) -> dict[str, torch.Tensor]:
    """The arguments of transformers' Gemma 4 for normalised tiles [3, height, width]: rows of
    patches with their places (column, row), padded to the number of the largest."""
    patching = vision.patching
    assert isinstance(patching, PooledPatches)
    rows, places, side = [], [], patching.patch
    for tile in tiles:
        height, width = tile.shape[1] // side, tile.shape[2] // side
        mean, std = vision.resizing.mean[0], vision.resizing.std[0]
        cut = (tile * std + mean).reshape(3, height, side, width, side).transpose(1, 3, 2, 4, 0)
        more = ((0, patching.most_patches - height * width), (0, 0))
        rows.append(np.pad(cut.reshape(height * width, -1), more))
        place = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).reshape(-1, 2)
        places.append(np.pad(place, more, constant_values=-1))
    return {
        "pixel_values": torch.tensor(np.array(rows)),
        "image_position_ids": torch.tensor(np.array(places)),
    }


def idefics3(path: Path, name: str = "Idefics3") -> None:
    """Idefics3, or SmolVLM."""
    ids = _tokenizer(
        path,
        ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
        + [f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)],
    )
    config = getattr(transformers, f"{name}Config")(
        text_config=_TEXT,
        vision_config={**_VISION, "image_size": 32, "patch_size": 4},
        scale_factor=2,
        image_token_id=ids("<image>"),
        tie_word_embeddings=False,
    )
    _save(getattr(transformers, f"{name}ForConditionalGeneration"), config, path)
    settings = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}}
    _settings(path, image_mean=[0.5] * 3, image_std=[0.5] * 3, resample=1, **settings)
    (path / "chat_template.jinja").write_text(IDEFICS3_TEMPLATE)


def llava(path: Path, tower: str = "clip_vision_model") -> None:
    """LLaVA 1.5, with CLIP or SigLIP."""
    is_clip = tower.startswith("clip")
    config = transformers.LlavaConfig(
        text_config=_TEXT,
        vision_config={**_VISION, "model_type": tower, "image_size": 28, "patch_size": 7},
        image_token_index=_tokenizer(path, ["<image>"])("<image>"),
        vision_feature_select_strategy="default" if is_clip else "full",
    )
    _save(transformers.LlavaForConditionalGeneration, config, path)
    crop = {"height": 28, "width": 28}
    _settings(path, size={"shortest_edge": 28}, crop_size=crop, resample=3, **_CLIP)


def llava_next(path: Path, tower: str = "clip_vision_model") -> None:
    """LLaVA-NeXT, whose pictures have up to four tiles besides the first."""
    is_clip = tower.startswith("clip")
    sizes = [[28, 56], [56, 28], [56, 56], [28, 84]]
    config = transformers.LlavaNextConfig(
        text_config=_TEXT,
        vision_config={**_VISION, "model_type": tower, "image_size": 28, "patch_size": 7},
        image_token_index=_tokenizer(path, ["<image>"])("<image>"),
        vision_feature_select_strategy="default" if is_clip else "full",
        image_grid_pinpoints=sizes,
    )
    _save(transformers.LlavaNextForConditionalGeneration, config, path)
    crop = {"height": 28, "width": 28}
    _settings(path, size={"shortest_edge": 28}, crop_size=crop, resample=3,
              image_grid_pinpoints=sizes, **_CLIP)  # fmt: skip


def internvl(path: Path, **more: Any) -> None:
    """InternVL 3; with `more` settings, as with the tower of 6B."""
    ids = _tokenizer(path, ["<img>", "</img>", "<IMG_CONTEXT>"])
    vision = {**_VISION, "attention_bias": True, "layer_scale_init_value": 0.5, **more}
    config = transformers.InternVLConfig(
        text_config={**_TEXT, "model_type": "qwen2"},
        vision_config={**vision, "image_size": [28, 28], "patch_size": [7, 7]},
        image_token_id=ids("<IMG_CONTEXT>"),
        image_seq_length=4,
        tie_word_embeddings=False,
    )
    _save(transformers.InternVLForConditionalGeneration, config, path)
    _settings(path, size={"height": 28, "width": 28}, crop_to_patches=True, resample=3, **_CLIP)


_QWEN = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
_QWEN_TEXT = {**_TEXT, "head_dim": 16, "hidden_size": 64}


def qwen2_vl(path: Path) -> None:
    """Qwen2-VL."""
    vision = {
        "depth": 3, "embed_dim": 48, "hidden_size": 64, "mlp_ratio": 2, "num_heads": 4,
        "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2,
    }  # fmt: skip
    _qwen(path, "Qwen2VL", vision, [2, 3, 3])


def qwen2_5_vl(path: Path) -> None:
    """Qwen2.5-VL, whose windows have 2 x 2 squares of patches."""
    vision = {
        "depth": 4, "hidden_size": 48, "out_hidden_size": 64, "intermediate_size": 52,
        "num_heads": 4, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2,
        "window_size": 16, "fullatt_block_indexes": [1, 3],
    }  # fmt: skip
    _qwen(path, "Qwen2_5_VL", vision, [2, 3, 3])


def qwen3_vl(path: Path) -> None:
    """Qwen3-VL, whose text has hidden states of two layers of the encoder."""
    vision = {
        "depth": 4, "hidden_size": 48, "out_hidden_size": 64, "intermediate_size": 52,
        "num_heads": 4, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2,
        "num_position_embeddings": 25, "deepstack_visual_indexes": [0, 2],
    }  # fmt: skip
    _qwen(path, "Qwen3VL", vision, [3, 2, 2], mrope_interleaved=True)


def qwen3_vl_moe(path: Path, *, is_published: bool = True) -> None:
    """Qwen3-VL with experts, all of a layer in one tensor; transposed in published checkpoints,
    but not in those that transformers 5 saves."""
    vision = {
        "depth": 3, "hidden_size": 48, "out_hidden_size": 64, "intermediate_size": 52,
        "num_heads": 4, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2,
        "num_position_embeddings": 36, "deepstack_visual_indexes": [1],
    }  # fmt: skip
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    _qwen(path, "Qwen3VLMoe", vision, [3, 2, 3], experts, mrope_interleaved=True)
    if is_published:
        tensors = load_file(path / "model.safetensors")
        for name, tensor in tensors.items():
            if ".mlp.experts." in name:
                tensors[name] = tensor.transpose(1, 2).contiguous()
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def _qwen(
    path: Path,
    name: str,
    vision: dict[str, Any],
    section: list[int],
    experts: dict[str, int] | None = None,
    **rope: bool,
) -> None:
    ids = _tokenizer(path, _QWEN)
    kinds = {
        "Qwen2VL": "qwen2_vl", "Qwen2_5_VL": "qwen2_5_vl", "Qwen3VL": "qwen3_vl",
        "Qwen3VLMoe": "qwen3_vl_moe",
    }  # fmt: skip
    scaling = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": section, **rope}
    text = {
        **_QWEN_TEXT, **(experts or {}), "model_type": f"{kinds[name]}_text",
        "rope_parameters": scaling,
    }  # fmt: skip
    config = getattr(transformers, f"{name}Config")(
        text_config=text,
        vision_config={**vision, "initializer_range": 0.2},
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
        tie_word_embeddings=False,
    )
    _save(getattr(transformers, f"{name}ForConditionalGeneration"), config, path)
    size = {"shortest_edge": 256, "longest_edge": 3200}
    _settings(path, size=size, patch_size=4, merge_size=2, temporal_patch_size=2, **_CLIP)


def gemma3(path: Path, types: tuple[str, ...] = ("sliding", "full", "sliding")) -> None:
    """Gemma 3, with a window that is a little larger than an image."""
    ids = _tokenizer(path, ["<start_of_image>", "<image_soft_token>", "<end_of_image>"])
    text = {
        **_TEXT, "model_type": "gemma3_text", "head_dim": 12, "num_hidden_layers": 3,
        "sliding_window": 20, "layer_types": [f"{one}_attention" for one in types],
        "query_pre_attn_scalar": 12, "rope_parameters": None,
    }  # fmt: skip
    del text["rope_parameters"]
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config={**_VISION, "model_type": "siglip_vision_model", "image_size": 32,
                       "patch_size": 4},
        mm_tokens_per_image=16,
        image_token_index=ids("<image_soft_token>"),
        boi_token_index=ids("<start_of_image>"),
        eoi_token_index=ids("<end_of_image>"),
        tie_word_embeddings=True,
    )  # fmt: skip
    _save(transformers.Gemma3ForConditionalGeneration, config, path)
    size = {"height": 32, "width": 32}
    _settings(path, size=size, image_mean=[0.5] * 3, image_std=[0.5] * 3, resample=2)


_GEMMA4_VISION: dict[str, Any] = {
    "hidden_size": 40, "intermediate_size": 50, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "patch_size": 4, "pooling_kernel_size": 3,
    "position_embedding_size": 60, "initializer_range": 0.2,
}  # fmt: skip
_GEMMA4_TEXT: dict[str, Any] = {
    **_TEXT, "num_hidden_layers": 4, "sliding_window": 20, "global_head_dim": 24,
    "layer_types": [f"{one}_attention" for one in ("sliding", "full", "sliding", "full")],
    "vocab_size_per_layer_input": 300, "pad_token_id": 0,
}  # fmt: skip


def gemma4(path: Path, **vision: Any) -> None:
    """Gemma 4 E2B: layers with own rows of a token, products with bounds, and no spans."""
    text = {
        "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2,
        "use_bidirectional_attention": None,
    }  # fmt: skip
    _gemma4(path, "Gemma4", text, {**_GEMMA4_VISION, "use_clipped_linears": True, **vision})


def gemma4_spans(path: Path) -> None:
    """Gemma 4 31B: the tokens of an image see each other, and the means are normalised."""
    text = {"hidden_size_per_layer_input": 0, "use_bidirectional_attention": "vision"}
    _gemma4(path, "Gemma4", text, {**_GEMMA4_VISION, "standardize": True})


def gemma4_unified(path: Path) -> None:
    """Gemma 4 12B, whose encoder has no layers."""
    vision = {
        "patch_size": 4, "pooling_kernel_size": 3, "mm_embed_dim": 40, "mm_posemb_size": 20,
        "output_proj_dims": 40, "initializer_range": 0.2,
    }  # fmt: skip
    _gemma4(path, "Gemma4Unified", {"use_bidirectional_attention": "vision"}, vision)


def _gemma4(path: Path, name: str, text: dict[str, Any], vision: dict[str, Any]) -> None:
    ids = _tokenizer(path, ["<|image|>", "<|image>", "<image|>"])
    kind = "gemma4_unified" if name.endswith("Unified") else "gemma4"
    config = getattr(transformers, f"{name}Config")(
        text_config={**_GEMMA4_TEXT, **text, "model_type": f"{kind}_text"},
        vision_config={**vision, "model_type": f"{kind}_vision"},
        audio_config=None,
        image_token_id=ids("<|image|>"),
        boi_token_id=ids("<|image>"),
        eoi_token_id=ids("<image|>"),
    )
    _save(getattr(transformers, f"{name}ForConditionalGeneration"), config, path)
    _settings(path, max_soft_tokens=18, do_normalize=False, resample=3)


_PIXTRAL = {
    "model_type": "pixtral", "hidden_size": 48, "intermediate_size": 50, "num_hidden_layers": 3,
    "num_attention_heads": 3, "patch_size": 4, "image_size": 64, "initializer_range": 0.2,
}  # fmt: skip


def mistral3(path: Path) -> None:
    """Mistral 3, whose patches are merged."""
    ids = _tokenizer(path, ["[IMG]", "[IMG_BREAK]", "[IMG_END]"])
    config = transformers.Mistral3Config(
        text_config={**_TEXT, "model_type": "mistral", "sliding_window": None},
        vision_config=_PIXTRAL,
        image_token_index=ids("[IMG]"),
        spatial_merge_size=2,
        tie_word_embeddings=False,
    )
    _save(transformers.Mistral3ForConditionalGeneration, config, path)
    _settings(path, size={"longest_edge": 48}, patch_size=8, resample=3, **_CLIP)


def pixtral(path: Path) -> None:
    """Pixtral in LLaVA's form."""
    ids = _tokenizer(path, ["[IMG]", "[IMG_BREAK]", "[IMG_END]"])
    config = transformers.LlavaConfig(
        text_config={**_TEXT, "model_type": "mistral", "sliding_window": None},
        vision_config=_PIXTRAL,
        image_token_index=ids("[IMG]"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    _save(transformers.LlavaForConditionalGeneration, config, path)
    _settings(path, size={"longest_edge": 32}, patch_size=4, resample=3, **_CLIP)


_SOUND = {"num_mel_bins": 20, "max_source_positions": 50, "initializer_range": 0.2}
"""The longest tile has 100 frames, or a second."""


def qwen2_audio(path: Path) -> None:
    """Qwen2-Audio."""
    ids = _tokenizer(path, ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"])
    config = transformers.Qwen2AudioConfig(
        text_config={**_TEXT, "model_type": "qwen2"},
        audio_config={**_SOUND, "d_model": 36, "encoder_layers": 3, "encoder_attention_heads": 3,
                      "encoder_ffn_dim": 50, "model_type": "qwen2_audio_encoder"},
        audio_token_index=ids("<|AUDIO|>"),
        tie_word_embeddings=False,
    )  # fmt: skip
    _save(transformers.Qwen2AudioForConditionalGeneration, config, path)
    _extractor().save_pretrained(path)


def voxtral(path: Path) -> None:
    """Voxtral, whose rows have five positions."""
    ids = _tokenizer(path, ["[AUDIO]", "[BEGIN_AUDIO]", "[INST]", "[/INST]", "[TRANSCRIBE]"])
    config = transformers.VoxtralConfig(
        text_config=_TEXT,
        audio_config={**_SOUND, "hidden_size": 36, "num_hidden_layers": 3,
                      "num_attention_heads": 3, "intermediate_size": 180},
        audio_token_id=ids("[AUDIO]"),
        tie_word_embeddings=False,
    )  # fmt: skip
    _save(transformers.VoxtralForConditionalGeneration, config, path)
    _extractor().save_pretrained(path)


def _extractor() -> Any:
    return transformers.WhisperFeatureExtractor(feature_size=20, chunk_length=1)


SOUND_CASES: dict[str, Callable[[Path], None]] = {"qwen2-audio": qwen2_audio, "voxtral": voxtral}


CASES: dict[str, Callable[[Path], None]] = {
    "idefics3": idefics3,
    "smolvlm": lambda path: idefics3(path, "SmolVLM"),
    "llava-clip": llava,
    "llava-siglip": lambda path: llava(path, "siglip_vision_model"),
    "llava-next": llava_next,
    "llava-next-siglip": lambda path: llava_next(path, "siglip_vision_model"),
    "internvl": internvl,
    "internvl-6b": lambda path: internvl(
        path, norm_type="rms_norm", use_qk_norm=True, attention_bias=False
    ),
    "qwen2-vl": qwen2_vl,
    "qwen2.5-vl": qwen2_5_vl,
    "qwen3-vl": qwen3_vl,
    "qwen3-vl-moe": qwen3_vl_moe,
    "qwen3-vl-moe-saved": lambda path: qwen3_vl_moe(path, is_published=False),
    "gemma3": gemma3,
    "gemma4": gemma4,
    "gemma4-spans": gemma4_spans,
    "gemma4-unified": gemma4_unified,
    "mistral3": mistral3,
    "pixtral": pixtral,
}


GGUF_CASES: dict[str, Callable[[Path], None]] = {
    **{name: make for name, make in CASES.items() if name != "qwen3-vl-moe-saved"},
    # Files of Gemma 3 do not say which layers have windows: of the first five, all.
    "gemma3": lambda path: gemma3(path, ("sliding",) * 3),
}


def _tokenizer(path: Path, special: list[str]) -> Callable[[str], int]:
    """Writes a tokenizer of bytes and these special tokens. Returns the ids of the latter."""
    path.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={one: i for i, one in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(one, normalized=False, special=True) for one in ["<eos>", *special]]
    )
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")
    fast.save_pretrained(path)
    return lambda token: int(tokenizer.token_to_id(token))


def _save(model_class: Any, config: Any, path: Path) -> None:
    torch.manual_seed(1)
    model = model_class(config).eval()
    for name, weight in model.named_parameters():
        if "position" in name or "pos_emb" in name or "cls" in name or "class_emb" in name:
            weight.data.normal_(0, 0.3)
        elif weight.dim() <= 1:
            weight.data.add_(torch.randn_like(weight) * 0.1)
    for name, values in model.named_buffers():
        # Of Gemma 4: bounds of products, which cut off a part of the numbers, and of means.
        if name.endswith(("put_min", "put_max")):
            values.fill_((1 if name.endswith("max") else -1) * (1 + torch.rand(()).item()))
        elif name.endswith(("std_bias", "std_scale")):
            values.normal_(1, 0.3)
    model.save_pretrained(path)


def _settings(path: Path, **values: Any) -> None:
    (path / "preprocessor_config.json").write_text(json.dumps(values))
