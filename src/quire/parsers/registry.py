"""The formats by name: vLLM's names of tool parsers and reasoning parsers."""

from __future__ import annotations

from quire.parsers.format import ToolFormat
from quire.parsers.reasoning.families import FAMILIES
from quire.parsers.reasoning.tags import ReasoningTags
from quire.parsers.tool_formats.json import bare, hermes, lists, mistral, named

TOOL_FORMATS: dict[str, type[ToolFormat]] = {
    "hermes": hermes.HermesCalls,
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
    "inkling": hermes.InklingCalls,
    "internlm": hermes.InternLmCalls,
    "jamba": lists.JambaCalls,
    "hunyuan_a13b": lists.HunyuanCalls,
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
"""For `--tool-call-parser`. Of two that read a template alike, `detection` takes the first."""

REASONING_FORMATS: dict[str, ReasoningTags] = FAMILIES
"""For `--reasoning-parser`."""
