"""The formats by vLLM's names of tool parsers and reasoning parsers."""

from __future__ import annotations

from quire.parsers import harmony, muse_glimmer
from quire.parsers.format import ReplyFormat
from quire.parsers.reasoning_families import FAMILIES
from quire.parsers.reasoning_tags import ReasoningTags
from quire.parsers.tool_format import ToolFormat
from quire.parsers.tool_formats import bare_json as bare
from quire.parsers.tool_formats import gemma, hermes, kimi_k3, mistral, plamo, pythonic
from quire.parsers.tool_formats import json_lists as lists
from quire.parsers.tool_formats import minimax_m3 as elements
from quire.parsers.tool_formats import named_json as named
from quire.parsers.tool_formats import tagged_families as parameter_families
from quire.parsers.tool_formats import tagged_pairs as pairs

TOOL_FORMATS: dict[str, type[ToolFormat]] = {
    "hermes": hermes.HermesCalls,
    "apertus": lists.ApertusCalls,
    "cohere_command3": lists.CohereCalls,
    "cohere_command4": lists.CohereCalls,
    "deepseek_v3": named.DeepSeekV3Calls,
    "deepseek_v31": named.DeepSeekV31Calls,
    "deepseek_v32": parameter_families.DeepSeekV32Calls,
    "deepseek_v4": parameter_families.DeepSeekV4Calls,
    "deepseek_v41": parameter_families.DeepSeekV41Calls,
    "dots": parameter_families.DotsCalls,
    "ernie45": hermes.ErnieCalls,
    "functiongemma": gemma.FunctionGemmaCalls,
    "gemma4": gemma.GemmaCalls,
    "gigachat3": hermes.GigaChatCalls,
    "glm45": pairs.Glm45Calls,
    "glm47": pairs.Glm47Calls,
    "granite": lists.GraniteCalls,
    "granite-20b-fc": hermes.Granite20bCalls,
    "granite4": hermes.HermesCalls,
    "hunyuan_a13b": lists.HunyuanCalls,
    "hy_v4": pairs.HunyuanV4Calls,
    "hy_v3": pairs.HunyuanV3Calls,
    "inkling": hermes.InklingCalls,
    "internlm": hermes.InternLmCalls,
    "jamba": lists.JambaCalls,
    "k2_horizon": pairs.K2HorizonCalls,
    "kimi_k2": named.KimiK2Calls,
    "kimi_k3": kimi_k3.KimiK3Calls,
    "lfm2": pythonic.Lfm2Calls,
    "ling3": pairs.Glm47Calls,
    "llama3_json": bare.LlamaCalls,
    "llama4_json": bare.Llama4Calls,
    "longcat": hermes.LongcatCalls,
    "mimo": parameter_families.MiMoCalls,
    "minicpm5": parameter_families.MiniCPM5Calls,
    "minimax_m2": parameter_families.MiniMaxM2Calls,
    "minimax_m3": elements.MiniMaxM3Calls,
    "mistral": mistral.MistralCalls,
    "mistral_list": mistral.MistralListCalls,
    "muse_glimmer": muse_glimmer.MuseGlimmerCalls,
    "muse": muse_glimmer.MuseCalls,
    "musespark1x": muse_glimmer.MuseCalls,
    "olmo3": pythonic.Olmo3Calls,
    "openai": harmony.HarmonyCalls,
    "phi4_mini_json": lists.Phi4MiniCalls,
    "plamo3": plamo.PlamoCalls,
    "poolside_v1": pairs.PoolsideCalls,
    "pythonic": pythonic.PythonicCalls,
    "llama4_pythonic": pythonic.Llama4PythonicCalls,
    "qwen3_coder": parameter_families.Qwen3CoderCalls,
    "qwen3_json": hermes.HermesCalls,
    "qwen3_xml": parameter_families.Qwen3CoderCalls,
    "seed_oss": parameter_families.SeedOssCalls,
    "solar_open": named.SolarOpenCalls,
    "step3": parameter_families.Step3Calls,
    "step3p5": parameter_families.Qwen3CoderCalls,
    "step5": parameter_families.Qwen3CoderCalls,
    "xlam": bare.XlamCalls,
}
"""Names for `--tool-call-parser`. If two read a template equally well, detection uses the first."""

REASONING_FORMATS: dict[str, ReasoningTags] = {
    **FAMILIES,
    "openai_gptoss": harmony.HARMONY_REASONING,
}
"""Names for `--reasoning-parser`."""

_CHANNELS: tuple[tuple[type[ReplyFormat], str, str], ...] = (
    (harmony.HarmonyFormat, "openai_gptoss", "openai"),
    (muse_glimmer.MuseFormat, "muse", "muse"),
    (muse_glimmer.MuseGlimmerFormat, "muse_glimmer", "muse_glimmer"),
)
"""Formats that replace `ReplyFormat`, with their reasoning name and tool name."""


def reply_format(reasoning: ReasoningTags | None, tools: ToolFormat | None) -> ReplyFormat:
    """The format of replies with this reasoning and these calls; either may be missing."""
    for format, reasoning_name, tools_name in _CHANNELS:
        is_tools = isinstance(tools, TOOL_FORMATS[tools_name])
        if is_tools or (tools is None and reasoning == REASONING_FORMATS[reasoning_name]):
            return format(reasoning, tools)
    return ReplyFormat(reasoning, tools)
