"""The families whose calls are read by `parameters`."""

from __future__ import annotations

from dataclasses import replace

from quire.parsers.arguments.grammar import Layout
from quire.parsers.arguments.values import ANY
from quire.parsers.tool_formats.tagged_parameters import (
    ParameterCalls,
    ParameterTags,
    invoke_layout,
    invoke_tags,
)


def _functions(section: str) -> ParameterTags:
    return ParameterTags(
        call=("<function=",),
        call_end="</function>",
        parameter=("<parameter=",),
        parameter_end="</parameter>",
        sections=(f"<{section}>",),
        section_ends=(f"</{section}>",),
        is_section_end_text=True,
        trim="line",
    )


def _functions_layout(section: str, line: str) -> Layout:
    return Layout(
        call=(f"<{section}>\n<function={{name}}>\n", f"</function>\n</{section}>"),
        text=(f"<parameter={{key}}>{line}", f"{line}</parameter>\n"),
    )


class Qwen3CoderCalls(ParameterCalls):
    """Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5. Each value is on its own lines."""

    tags = _functions("tool_call")
    layout = _functions_layout("tool_call", "\n")


class SeedOssCalls(ParameterCalls):
    """Seed-OSS: the format of Qwen3-Coder with other marks, without line breaks around values."""

    tags = replace(_functions("seed:tool_call"), trim="")
    layout = _functions_layout("seed:tool_call", "")


class MiMoCalls(ParameterCalls):
    """MiMo: the format of Qwen3-Coder without line breaks around values."""

    tags = replace(_functions("tool_call"), trim="")
    layout = _functions_layout("tool_call", "")


class MiniMaxM2Calls(ParameterCalls):
    """MiniMax M2."""

    tags = invoke_tags("minimax:tool_call")
    layout = invoke_layout("minimax:tool_call")


class DotsCalls(ParameterCalls):
    """dots."""

    tags = invoke_tags("dots_function_call", trim="space")
    layout = invoke_layout("dots_function_call")


def _dsml(mark: str, *sections: str) -> ParameterTags:
    return invoke_tags(*(f"{mark}{name}" for name in sections), mark=mark, unknown=ANY)


def _dsml_layout(mark: str, section: str) -> Layout:
    begin, end = f'<{mark}parameter name="{{key}}" string=', f"</{mark}parameter>\n"
    layout = invoke_layout(f"{mark}{section}", mark)
    return replace(layout, text=(f'{begin}"true">', end), value=f'{begin}"false">')


class DeepSeekV32Calls(ParameterCalls):
    """DeepSeek V3.2: the tag of an argument says whether the value is a string or JSON."""

    tags = _dsml("｜DSML｜", "function_calls")
    layout = _dsml_layout("｜DSML｜", "function_calls")


class DeepSeekV4Calls(ParameterCalls):
    """DeepSeek V4, which sometimes writes other tags around calls."""

    tags = _dsml("｜DSML｜", "tool_calls", "toolcalls", "tool", "function_calls")
    layout = _dsml_layout("｜DSML｜", "tool_calls")


class DeepSeekV41Calls(ParameterCalls):
    """DeepSeek V4.1: the format of V4 with spaces in the tags."""

    tags = _dsml("｜DSML｜ ", "calls")
    layout = _dsml_layout("｜DSML｜ ", "calls")


class Step3Calls(ParameterCalls):
    """Step 3: each call is between marks and preceded by its type."""

    tags = replace(
        invoke_tags(mark="steptml:"),
        sections=("<｜tool_calls_begin｜>",),
        section_ends=("<｜tool_calls_end｜>",),
        around=("<｜tool_call_begin｜>", "function", "<｜tool_sep｜>", "<｜tool_call_end｜>"),
        trim="space",
    )
    layout = Layout(
        call=(
            '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">',
            "</steptml:invoke><｜tool_call_end｜>",
        ),
        text=('<steptml:parameter name="{key}">', "</steptml:parameter>"),
        around=("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
        separator="",
    )


class MiniCPM5Calls(ParameterCalls):
    """MiniCPM 5: a value may be in a CDATA section; the space in a tag may be missing."""

    tags = ParameterTags(
        call=("<function name=", "<functionname="),
        call_end="</function>",
        parameter=("<param name=", "<paramname="),
        parameter_end="</param>",
        trim="space",
        unknown=ANY,
        has_cdata=True,
    )
    layout = Layout(
        call=('<function name="{name}">', "</function>"), text=('<param name="{key}">', "</param>")
    )
