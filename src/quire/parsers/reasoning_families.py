"""The marks of reasoning by family, under the names of vLLM's reasoning parsers if it has one."""

from __future__ import annotations

from dataclasses import replace

from quire.parsers.reasoning_tags import ReasoningTags

_THINK = ReasoningTags("<think>", "</think>", ends_at_call=False)
"""The answer keeps text that looks like a tag."""
_ALWAYS = replace(_THINK, is_implied=True)
_QWEN = replace(_THINK, ends_at_call=True, answer_marks=("</think>",))
"""Repeated end marks are dropped."""
_TRIMMED = replace(_QWEN, keeps_space=False)
_REPEATED = replace(_TRIMMED, may_repeat=True)
_COHERE = ReasoningTags(
    "<|START_THINKING|>",
    "<|END_THINKING|>",
    answer_marks=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
)

_MUSE_GLIMMER = ReasoningTags(
    "to=self<|message|>",
    "<|eom|>",
    may_repeat=True,
    answer_marks=("<|start|>assistant", "to=user<|message|>", "<|eom|>", "<|eot|>"),
    trims_answer=True,
)
_MUSE = replace(
    _MUSE_GLIMMER, answer_marks=(*_MUSE_GLIMMER.answer_marks, "to=commentary<|message|>")
)

FAMILIES: dict[str, ReasoningTags] = {
    "apriel": ReasoningTags(
        "Here are my reasoning steps:",
        "[BEGIN FINAL RESPONSE]",
        answer_marks=("[END FINAL RESPONSE]",),
        keeps_space=False,
        trims_answer=True,
    ),
    "qwen3": _QWEN,
    "cohere_command3": _COHERE,
    "cohere_command4": _COHERE,
    "deepseek_r1": _ALWAYS,
    "deepseek_v3": _THINK,
    "deepseek_v4": _REPEATED,
    "deepseek_v41": _REPEATED,
    "ernie45": replace(_ALWAYS, answer_marks=("<response>", "</response>"), trims_answer=True),
    "gemma4": ReasoningTags(
        "<|channel>",
        "<channel|>",
        header="thought\n",
        may_repeat=True,
        keeps_space=False,
        answer_marks=("<channel|>",),
    ),
    "glm45": _REPEATED,
    "glm47": _REPEATED,
    "granite": ReasoningTags(
        "Here is my thought process:",
        "Here is my response:",
        other_begins=("Here's my thought process:",),
        other_ends=("Here's my response:",),
        ends_at_call=False,
    ),
    "granite_thinking_parser": replace(_TRIMMED, trims_answer=True),
    "holo2": _THINK,
    "hunyuan_a13b": replace(
        _THINK,
        header="\n",
        keeps_space=False,
        answer_marks=("<answer>", "</answer>"),
        trims_answer=True,
    ),
    "hy_v3": _THINK,
    "hy_v4": _THINK,
    "inkling": ReasoningTags(
        "<|content_thinking|>",
        "<|end_message|>",
        other_ends=("<|content_model_end_sampling|>",),
        may_repeat=True,
        keeps_space=False,
        answer_marks=(
            "<|message_model|>",
            "<|content_text|>",
            "<|content_tool_error|>",
            "<|content_invoke_tool_text|>",
            "<|content_model_end_sampling|>",
            "<|end_message|>",
        ),
    ),
    "k2_horizon": ReasoningTags(
        "<ifm|think>",
        "</ifm|think>",
        other_begins=("<ifm|think_fast>", "<ifm|think_faster>"),
        other_ends=("</ifm|think_fast>", "</ifm|think_faster>"),
        is_implied=True,
    ),
    "kimi_k2": _TRIMMED,
    "kimi_k3": ReasoningTags(
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        answer_marks=(
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|close|>message<|sep|>",
        ),
    ),
    "ling3": _REPEATED,
    "mimo": _QWEN,
    "minicpmv": _QWEN,
    "minimax_m2": replace(_TRIMMED, is_implied=True),
    "minimax_m2_append_think": replace(_THINK, is_implied=True, is_content=True),
    "minimax_m3": ReasoningTags("<mm:think>", "</mm:think>", ends_at_call=False, may_repeat=True),
    "mistral": ReasoningTags(
        "[THINK]",
        "[/THINK]",
        other_begins=("<think>",),
        other_ends=("</think>",),
        may_repeat=True,
        keeps_space=False,
        answer_marks=("[/THINK]",),
    ),
    "muse_glimmer": _MUSE_GLIMMER,
    "muse": _MUSE,
    "musespark1x": _MUSE,
    "nemotron_v3": _TRIMMED,
    "olmo3": _ALWAYS,
    "plamo3": ReasoningTags(
        "<|plamo:begin_think:plamo|>",
        "<|plamo:end_think:plamo|>",
        may_repeat=True,
        keeps_space=False,
        answer_marks=("<|plamo:end_think:plamo|>", "<|plamo:tag|>"),
    ),
    "poolside_v1": _THINK,
    "seed_oss": replace(
        _QWEN, begin="<seed:think>", end="</seed:think>", answer_marks=("</seed:think>",)
    ),
    "solar_open": ReasoningTags(
        "<|think|>", "<|end|>", answer_marks=("<|begin|>assistant", "<|content|>", "<|end|>")
    ),
    "step3": _ALWAYS,
    "step3p5": replace(_TRIMMED, is_implied=True),
    "step5": _ALWAYS,
}
"""If several families have the same tags, the first one is the most general: it is used for models
of which only the tags are known."""
