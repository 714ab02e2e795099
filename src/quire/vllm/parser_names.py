"""Names of vLLM's parser modules and classes. Each class reads replies with a format of Quire.

A line has the format's name, the module's name without its suffix, and the class.
"""

from __future__ import annotations

_TOOLS = """\
dots dots DotsToolParser
deepseek_v3 deepseekv3 DeepSeekV3ToolParser
deepseek_v31 deepseekv31 DeepSeekV31ToolParser
deepseek_v32 deepseekv32_engine DeepSeekV32EngineToolParser
deepseek_v4 deepseekv4_engine DeepSeekV4EngineToolParser
deepseek_v41 deepseekv41_engine DeepSeekV41EngineToolParser
cohere_command3 cohere_command CohereCommand3ToolParser
cohere_command4 cohere_command CohereCommand4ToolParser
ernie45 ernie45 Ernie45ToolParser
glm47 glm47_moe Glm47MoeModelToolParser
ling3 ling3 Ling3ToolParser
granite-20b-fc granite_20b_fc Granite20bFCToolParser
granite granite_engine GraniteEngineToolParser
granite4 granite4 Granite4ToolParser
hermes hermes Hermes2ProToolParser
poolside_v1 poolside_v1 PoolsideV1ToolParser
hunyuan_a13b hunyuan_a13b HunyuanA13BToolParser
hy_v3 hy_v3 HYV3ToolParser
hy_v4 hy_v4 HYV4ToolParser
internlm internlm2 Internlm2ToolParser
jamba jamba JambaToolParser
lfm2 lfm2 Lfm2ToolParser
kimi_k2 kimi_k2 KimiK2ToolParser
kimi_k3 kimi_k3 KimiK3ToolParser
k2_horizon k2_horizon K2HorizonToolParser
llama3_json llama Llama3JsonToolParser
llama4_pythonic llama4_pythonic Llama4PythonicToolParser
longcat longcat LongcatFlashToolParser
mimo mimo MiMoToolParser
minimax_m2 minimax_m2 MinimaxM2ToolParser
minimax_m3 minimax_m3 MinimaxM3ToolParser
minicpm5 minicpm5xml MiniCPM5XMLToolParser
mistral mistral MistralToolParser
olmo3 olmo3 Olmo3PythonicToolParser
plamo3 plamo3_engine Plamo3EngineToolParser
muse_glimmer muse_glimmer MuseGlimmerToolParser
muse muse MuseToolParser
openai gptoss GptOssToolParser
phi4_mini_json phi4mini Phi4MiniJsonToolParser
pythonic pythonic PythonicToolParser
qwen3_coder qwen3_engine Qwen3EngineToolParser
seed_oss seed_oss_engine SeedOssEngineToolParser
step3 step3 Step3ToolParser
step3p5 step3p5 Step3p5ToolParser
step5 step5 Step5ToolParser
inkling inkling InklingEngineToolParser
xlam xlam xLAMToolParser
gigachat3 gigachat3 GigaChat3ToolParser
functiongemma functiongemma FunctionGemmaToolParser
gemma4 gemma4_engine Gemma4EngineToolParser
apertus apertus ApertusToolParser
"""
_REASONING = """\
deepseek_r1 deepseek_r1 DeepSeekR1ReasoningParser
deepseek_v3 deepseek_v3 DeepSeekV3ReasoningParser
deepseek_v4 deepseek_v4_engine DeepSeekV4ParserReasoningAdapter
deepseek_v41 deepseek_v41_engine DeepSeekV41ParserReasoningAdapter
poolside_v1 poolside_v1 PoolsideV1ReasoningParser
cohere_command3 cohere_command CohereCommand3ReasoningParser
cohere_command4 cohere_command CohereCommand4ReasoningParser
ernie45 ernie45 Ernie45ReasoningParser
gemma4 gemma4_engine Gemma4ParserReasoningAdapter
glm47 glm47_moe Glm47MoeParserReasoningAdapter
ling3 ling3 Ling3ParserReasoningAdapter
openai_gptoss gptoss GptOssReasoningParser
granite granite GraniteReasoningParser
granite_thinking_parser granite_thinking_engine GraniteThinkingParserReasoningAdapter
holo2 deepseek_v3 DeepSeekV3ReasoningWithThinkingParser
hunyuan_a13b hunyuan_a13b HunyuanA13BReasoningParser
hy_v3 hy_v3 HYV3ReasoningParser
hy_v4 hy_v4 HYV4ReasoningParser
kimi_k2 kimi_k2 KimiK2ReasoningParser
kimi_k3 kimi_k3 KimiK3ReasoningParser
k2_horizon k2_horizon K2HorizonReasoningParser
mimo mimo_engine MiMoParserReasoningAdapter
minicpmv minicpmv MiniCPMVParserReasoningAdapter
minimax_m2 minimax_m2 MiniMaxM2ReasoningParser
minimax_m2_append_think minimax_m2 MiniMaxM2AppendThinkReasoningParser
minimax_m3 minimax_m3 MiniMaxM3ReasoningParser
mistral mistral MistralParserReasoningAdapter
nemotron_v3 nemotron_v3_engine NemotronV3ParserReasoningAdapter
olmo3 olmo3 Olmo3ReasoningParser
plamo3 plamo3_engine Plamo3ParserReasoningAdapter
muse_glimmer muse_glimmer MuseGlimmerReasoningParser
muse muse MuseReasoningParser
qwen3 qwen3_engine Qwen3ParserReasoningAdapter
seed_oss seed_oss_engine SeedOssParserReasoningAdapter
step3 step3 Step3ReasoningParser
step3p5 step3p5_engine Step3p5ParserReasoningAdapter
inkling inkling InklingParserReasoningAdapter
"""
_HOME = "quire.vllm.parsers"
_RECORDS = (
    "DeltaFunctionCall DeltaMessage DeltaToolCall ExtractedToolCallInformation "
    "FunctionCall ToolCall"
)


def _modules(lines: str, package: str, kind: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    home = f"{_HOME}.{kind}"
    for line in lines.splitlines():
        name, module, parser = line.split()
        names = found.setdefault(f"vllm.{package}.{module}_{kind}", {home: ""})
        names[home] = f"{names[home]} {parser}=own_{name}".strip()
    return found


PARSER_SURFACE: dict[str, dict[str, str]] = {
    **_modules(_TOOLS, "tool_parsers", "tool_parser"),
    **_modules(_REASONING, "reasoning", "reasoning_parser"),
    "vllm.entrypoints.generate.base.protocol": {
        f"{_HOME}.records": _RECORDS,
        "quire.server.conversation.message": "FunctionDefinition",
    },
    "vllm.reasoning": {f"{_HOME}.reasoning_parser": "ReasoningParser ReasoningParserManager"},
    "vllm.reasoning.abs_reasoning_parsers": {
        f"{_HOME}.reasoning_parser": "ReasoningParser ReasoningParserManager"
    },
    "vllm.reasoning.basic_parsers": {f"{_HOME}.reasoning_parser": "BaseThinkingReasoningParser"},
    "vllm.tool_parsers": {f"{_HOME}.tool_parser": "ToolParser ToolParserManager"},
    "vllm.tool_parsers.abstract_tool_parser": {
        f"{_HOME}.tool_parser": "ToolParser ToolParserManager"
    },
}
"""The part of `surface.SURFACE` for parsers."""
