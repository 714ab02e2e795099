"""Formats by model type, for chat templates that do not show how calls are written."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

TOOLS_BY_TYPE: dict[str, tuple[str, ...]] = {
    "apertus": ("apertus",),
    "bailing_hybrid": ("ling3",),
    "cohere2": ("cohere_command3",),
    "deepseek_v3": ("deepseek_v3", "deepseek_v31"),
    "deepseek_v32": ("deepseek_v32",),
    "ernie4_5": ("ernie45",),
    "ernie4_5_moe": ("ernie45",),
    "glm4_moe": ("glm45",),
    "gpt_oss": ("openai",),
    "granite": ("granite",),
    "granitemoe": ("granite",),
    "granitemoehybrid": ("granite4", "hermes"),
    "granitemoeshared": ("granite",),
    "hunyuan_v1_moe": ("hunyuan_a13b",),
    "hy_v3": ("hy_v3",),
    "hy_v4": ("hy_v4",),
    "internlm2": ("internlm",),
    "jamba": ("jamba",),
    "kimi_k2": ("kimi_k2",),
    "kimi_k3": ("kimi_k3",),
    "laguna": ("poolside_v1",),
    "lfm2": ("lfm2",),
    "lfm2_moe": ("lfm2",),
    "llama4": ("llama4_pythonic",),
    "minimax_m2": ("minimax_m2",),
    "ministral": ("mistral",),
    "mistral": ("mistral",),
    "mistral3": ("mistral",),
    "mixtral": ("mistral",),
    "muse_spark": ("muse",),
    "olmo3": ("olmo3",),
    "phi3": ("phi4_mini_json",),
    "qwen2": ("hermes",),
    "qwen3": ("hermes",),
    "qwen3_5": ("qwen3_coder",),
    "qwen3_moe": ("hermes",),
    "qwen3_next": ("hermes", "qwen3_coder"),
    "seed_oss": ("seed_oss",),
    "smollm3": ("hermes",),
    "step3p5": ("step3p5",),
    "step5": ("step5",),
}
"""Format names (vLLM's) by `model_type`, the likeliest first. Names that are not in `registry` are
ignored."""

REASONING_BY_TYPE: dict[str, tuple[str, ...]] = {
    "deepseek_v3": ("deepseek_v3",),
    "glm4_moe": ("glm45",),
    "gpt_oss": ("openai_gptoss",),
    "hunyuan_v1_moe": ("hunyuan_a13b",),
    "kimi_k2": ("kimi_k2",),
    "minimax_m2": ("minimax_m2",),
    "muse_spark": ("muse",),
    "olmo3": ("olmo3",),
    "qwen3": ("qwen3",),
    "qwen3_5": ("qwen3",),
    "qwen3_moe": ("qwen3",),
    "qwen3_next": ("qwen3",),
    "seed_oss": ("seed_oss",),
}
"""Reasoning format names by `model_type`."""


def names_of(
    table: Mapping[str, tuple[str, ...]], hf_config: Mapping[str, Any], known: Container[str]
) -> tuple[str, ...]:
    """The known formats of this model type, the likeliest first."""
    kind = hf_config.get("model_type")
    names = table.get(kind, ()) if isinstance(kind, str) else ()
    return tuple(name for name in names if name in known)
