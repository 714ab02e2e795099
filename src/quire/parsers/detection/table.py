"""Formats by model type, for chat templates that do not show how replies are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Formats(NamedTuple):
    """Names of formats (vLLM's), the likeliest first."""

    tools: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()


FORMATS_BY_TYPE: dict[str, Formats] = {
    "apertus": Formats(("apertus",)),
    "bailing_hybrid": Formats(("ling3",)),
    "cohere2": Formats(("cohere_command3",)),
    "deepseek_v3": Formats(("deepseek_v3", "deepseek_v31"), ("deepseek_v3",)),
    "deepseek_v32": Formats(("deepseek_v32",)),
    "ernie4_5": Formats(("ernie45",)),
    "ernie4_5_moe": Formats(("ernie45",)),
    "glm4_moe": Formats(("glm45",), ("glm45",)),
    "gpt_oss": Formats(("openai",), ("openai_gptoss",)),
    "granite": Formats(("granite",)),
    "granitemoe": Formats(("granite",)),
    "granitemoehybrid": Formats(("granite4", "hermes")),
    "granitemoeshared": Formats(("granite",)),
    "hunyuan_v1_moe": Formats(("hunyuan_a13b",), ("hunyuan_a13b",)),
    "hy_v3": Formats(("hy_v3",)),
    "hy_v4": Formats(("hy_v4",)),
    "internlm2": Formats(("internlm",)),
    "jamba": Formats(("jamba",)),
    "kimi_k2": Formats(("kimi_k2",), ("kimi_k2",)),
    "kimi_k3": Formats(("kimi_k3",)),
    "laguna": Formats(("poolside_v1",)),
    "lfm2": Formats(("lfm2",)),
    "lfm2_moe": Formats(("lfm2",)),
    "llama4": Formats(("llama4_pythonic",)),
    "minimax_m2": Formats(("minimax_m2",), ("minimax_m2",)),
    "ministral": Formats(("mistral",)),
    "mistral": Formats(("mistral",)),
    "mistral3": Formats(("mistral",)),
    "mixtral": Formats(("mistral",)),
    "muse_spark": Formats(("muse",), ("muse",)),
    "olmo3": Formats(("olmo3",), ("olmo3",)),
    "phi3": Formats(("phi4_mini_json",)),
    "qwen2": Formats(("hermes",)),
    "qwen3": Formats(("hermes",), ("qwen3",)),
    "qwen3_5": Formats(("qwen3_coder",), ("qwen3",)),
    "qwen3_moe": Formats(("hermes",), ("qwen3",)),
    "qwen3_next": Formats(("hermes", "qwen3_coder"), ("qwen3",)),
    "seed_oss": Formats(("seed_oss",), ("seed_oss",)),
    "smollm3": Formats(("hermes",)),
    "step3p5": Formats(("step3p5",)),
    "step5": Formats(("step5",)),
}
"""By `model_type`."""


def likely_formats(hf_config: Mapping[str, Any]) -> Formats:
    """The formats of this model type."""
    kind = hf_config.get("model_type")
    return FORMATS_BY_TYPE.get(kind, Formats()) if isinstance(kind, str) else Formats()
