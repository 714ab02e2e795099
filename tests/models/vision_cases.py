"""Tiny random checkpoints of the families with an image encoder, written for the tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

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


def internvl(path: Path) -> None:
    """InternVL 3."""
    ids = _tokenizer(path, ["<img>", "</img>", "<IMG_CONTEXT>"])
    vision = {**_VISION, "attention_bias": True, "layer_scale_init_value": 0.5}
    config = transformers.InternVLConfig(
        text_config={**_TEXT, "model_type": "qwen2"},
        vision_config={**vision, "image_size": [28, 28], "patch_size": [7, 7]},
        image_token_id=ids("<IMG_CONTEXT>"),
        image_seq_length=4,
        tie_word_embeddings=False,
    )
    _save(transformers.InternVLForConditionalGeneration, config, path)
    _settings(path, size={"height": 28, "width": 28}, crop_to_patches=True, resample=3, **_CLIP)


CASES: dict[str, Callable[[Path], None]] = {
    "idefics3": idefics3,
    "smolvlm": lambda path: idefics3(path, "SmolVLM"),
    "llava-clip": llava,
    "llava-siglip": lambda path: llava(path, "siglip_vision_model"),
    "internvl": internvl,
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
        if "position" in name or "cls" in name or "class_emb" in name:
            weight.data.normal_(0, 0.3)
        elif weight.dim() <= 1:
            weight.data.add_(torch.randn_like(weight) * 0.1)
    model.save_pretrained(path)


def _settings(path: Path, **values: Any) -> None:
    (path / "preprocessor_config.json").write_text(json.dumps(values))
