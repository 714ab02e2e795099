"""The formats by name: vLLM's names of tool parsers and reasoning parsers."""

from __future__ import annotations

from quire.parsers.format import ReasoningTags, ToolFormat
from quire.parsers.tool_formats.json import bare, hermes, lists, mistral, named

TOOL_FORMATS: dict[str, type[ToolFormat]] = {
    "apertus": lists.ApertusCalls,
    "cohere_command3": lists.CohereCalls,
    "cohere_command4": lists.CohereCalls,
    "deepseek_v3": named.DeepSeekV3Calls,
    "deepseek_v31": named.DeepSeekV31Calls,
    "ernie45": hermes.ErnieCalls,
    "gigachat3": hermes.GigaChatCalls,
    "granite": lists.GraniteCalls,
    "granite-20b-fc": hermes.Granite20bCalls,
    "granite4": hermes.HermesCalls,
    "hermes": hermes.HermesCalls,
    "hunyuan_a13b": lists.HunyuanCalls,
    "internlm": hermes.InternLmCalls,
    "jamba": lists.JambaCalls,
    "kimi_k2": named.KimiK2Calls,
    "llama3_json": bare.LlamaCalls,
    "llama4_json": bare.LlamaCalls,
    "longcat": hermes.LongcatCalls,
    "mistral": mistral.MistralCalls,
    "mistral_list": mistral.MistralListCalls,
    "phi4_mini_json": lists.Phi4MiniCalls,
    "qwen3_json": hermes.HermesCalls,
    "xlam": bare.XlamCalls,
}
"""For `--tool-call-parser`."""

REASONING_FORMATS: dict[str, ReasoningTags] = {
    "qwen3": ReasoningTags("<think>", "</think>"),
}
"""For `--reasoning-parser`."""
