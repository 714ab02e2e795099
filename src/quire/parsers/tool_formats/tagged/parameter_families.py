"""The families whose calls are read by `parameters`."""

from __future__ import annotations

from dataclasses import replace

from quire.parsers.arguments.grammar import Layout
from quire.parsers.arguments.values import ANY
from quire.parsers.tool_formats.tagged.parameters import ParameterCalls, ParameterTags


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
    """Seed-OSS: the format of Qwen3-Coder with other marks."""

    tags = _functions("seed:tool_call")
    layout = _functions_layout("seed:tool_call", "\n")


class MiMoCalls(ParameterCalls):
    """MiMo: the format of Qwen3-Coder without line breaks around values."""

    tags = replace(_functions("tool_call"), trim="")
    layout = _functions_layout("tool_call", "")


class MiniMaxM2Calls(ParameterCalls):
    """MiniMax M2."""

    tags = ParameterTags(
        call=("<invoke name=",),
        call_end="</invoke>",
        parameter=("<parameter name=",),
        parameter_end="</parameter>",
        sections=("<minimax:tool_call>",),
        section_ends=("</minimax:tool_call>",),
    )
    layout = Layout(
        call=('<invoke name="{name}">\n', "</invoke>\n"),
        text=('<parameter name="{key}">', "</parameter>\n"),
        around=("<minimax:tool_call>\n", "</minimax:tool_call>"),
        separator="",
    )


class DotsCalls(ParameterCalls):
    """dots."""

    tags = ParameterTags(
        call=("<invoke name=",),
        call_end="</invoke>",
        parameter=("<parameter name=",),
        parameter_end="</parameter>",
        sections=("<dots_function_call>",),
        section_ends=("</dots_function_call>",),
        trim="space",
    )
    layout = Layout(
        call=('<invoke name="{name}">\n', "</invoke>\n"),
        text=('<parameter name="{key}">', "</parameter>\n"),
        around=("<dots_function_call>\n", "</dots_function_call>"),
        separator="",
    )


def _dsml(mark: str, section: str, *others: str) -> ParameterTags:
    return ParameterTags(
        call=(f"<{mark}invoke name=",),
        call_end=f"</{mark}invoke>",
        parameter=(f"<{mark}parameter name=",),
        parameter_end=f"</{mark}parameter>",
        sections=tuple(f"<{mark}{name}>" for name in (section, *others)),
        section_ends=tuple(f"</{mark}{name}>" for name in (section, *others)),
        unknown=ANY,
    )


def _dsml_layout(mark: str, section: str) -> Layout:
    begin, end = f'<{mark}parameter name="{{key}}" string=', f"</{mark}parameter>\n"
    return Layout(
        call=(f'<{mark}invoke name="{{name}}">\n', f"</{mark}invoke>\n"),
        text=(f'{begin}"true">', end),
        value=(f'{begin}"false">', end),
        around=(f"<{mark}{section}>\n", f"</{mark}{section}>"),
        separator="",
    )


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

    tags = ParameterTags(
        call=("<steptml:invoke name=",),
        call_end="</steptml:invoke>",
        parameter=("<steptml:parameter name=",),
        parameter_end="</steptml:parameter>",
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
        call=('<function name="{name}">', "</function>"),
        text=('<param name="{key}">', "</param>"),
    )
