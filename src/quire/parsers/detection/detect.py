"""`detect`: finds the reply format of a checkpoint from its files and chat templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.parsers.detection.calls import (
    FoundCalls,
    best_known,
    better,
    derived,
    described,
    is_clean,
    render_samples,
)
from quire.parsers.detection.found import FoundFormat, Origin
from quire.parsers.detection.names import DECLARED, NONE, FormatChoice
from quire.parsers.detection.reasoning import (
    SWITCHED_ON,
    FoundReasoning,
    find_reasoning,
    named_by_marks,
)
from quire.parsers.detection.rendering import Frame, Probing, frame
from quire.parsers.detection.response_template import check_declared, read_response_template
from quire.parsers.detection.table import likely_formats
from quire.parsers.reasoning_tags import ReasoningTags
from quire.parsers.registry import REASONING_FORMATS, TOOL_FORMATS, reply_format
from quire.parsers.tool_format import ToolFormat

_ASKED = "as requested"
_BY_TYPE = "by the kind of model"
_DECLARED = "as the checkpoint's response_template says"


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """Facts of a checkpoint that may reveal the format."""

    hf_config: Mapping[str, Any]
    templates: Mapping[str, str]
    """Chat templates by name."""
    response_template: object = None
    """The `response_template` of its tokenizer configuration."""


def detect(choice: FormatChoice, facts: CheckpointFacts) -> Probing[FoundFormat]:
    """Find the format. A requested format is used as it is. Otherwise the format is searched in the
    calls that the chat templates render, then in a prompt with tools, then by the model type.

    Raises ConfigError if a requested declaration is missing in the checkpoint.
    """
    declared = read_response_template(facts.response_template)
    check_declared(choice, declared)
    frames = yield from _frames(facts)
    found_reasoning = yield from _reasoning(choice, facts, frames, declared.reasoning)
    tags = None if found_reasoning is None else found_reasoning.tags
    found_calls = yield from _calls(choice, facts, frames, tags, declared.calls)
    return FoundFormat(
        reply_format(tags, None if found_calls is None else found_calls.format),
        tools=None if found_calls is None else found_calls.origin,
        reasoning=None if found_reasoning is None else found_reasoning.origin,
        shows_tools=_shows_tools(frames),
    )


def _frames(facts: CheckpointFacts) -> Probing[list[Frame]]:
    """Frames with tools, without tools, and with reasoning enabled, if the template allows them."""
    if not facts.templates:
        return []
    frames = [(yield from frame(has_tools=True)), (yield from frame(has_tools=False))]
    for variables in SWITCHED_ON:
        frames.append((yield from frame(has_tools=False, variables=variables)))
    return [one for one in frames if one is not None]


def _shows_tools(frames: Sequence[Frame]) -> bool:
    with_tools, plain = _prompts(frames)
    return with_tools != plain and bool(with_tools)


def _prompts(frames: Sequence[Frame]) -> tuple[str, str]:
    """A prompt with tools and one without; empty if the template refuses it."""
    by_tools = {one.has_tools: one.prompt for one in reversed(frames)}
    return by_tools.get(True, ""), by_tools.get(False, "")


def _reasoning(
    choice: FormatChoice,
    facts: CheckpointFacts,
    frames: Sequence[Frame],
    declared: ReasoningTags | None,
) -> Probing[FoundReasoning | None]:
    if choice.reasoning == NONE:
        return None
    if choice.reasoning is not None and choice.reasoning != DECLARED:
        written = [*(frame.prompt for frame in frames), *facts.templates.values()]
        tags = REASONING_FORMATS[choice.reasoning].spelled_in("\n".join(written))
        return FoundReasoning(tags, Origin(choice.reasoning, _ASKED))
    likely = likely_formats(facts.hf_config).reasoning
    if declared is not None:
        return named_by_marks(declared, likely, _DECLARED)
    found = yield from find_reasoning(frames, facts.templates.values(), likely)
    if found is None and not frames:  # a rendered template would have shown it
        name = next((name for name in likely if not REASONING_FORMATS[name].is_implied), None)
        if name is not None:
            found = FoundReasoning(REASONING_FORMATS[name], Origin(name, _BY_TYPE))
    return found


def _calls(
    choice: FormatChoice,
    facts: CheckpointFacts,
    frames: Sequence[Frame],
    reasoning: ReasoningTags | None,
    declared: ToolFormat | None,
) -> Probing[FoundCalls | None]:
    if choice.tools == NONE:
        return None
    if choice.tools == DECLARED:
        return FoundCalls(declared, Origin(str(declared), _DECLARED)) if declared else None
    if choice.tools is not None:
        return FoundCalls(TOOL_FORMATS[choice.tools](), Origin(choice.tools, _ASKED))
    likely = likely_formats(facts.hf_config).tools
    samples = (yield from render_samples(frames[0], reasoning)) if frames else None
    if declared is not None and (samples is None or is_clean(samples, declared)):
        return FoundCalls(declared, Origin(str(declared), _DECLARED))
    if samples is not None:
        found = better(samples, best_known(samples, likely), derived(samples))
        if found is not None:
            return found
    elif frames and not _shows_tools(frames):
        return None  # the template does not show tools to the model
    elif frames:
        with_tools, plain = _prompts(frames)
        found = described(with_tools, plain, likely)
        if found is not None:
            return found
    return FoundCalls(TOOL_FORMATS[likely[0]](), Origin(likely[0], _BY_TYPE)) if likely else None
