"""`ResponseShape`: the fields of a response that repeat its request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quire.server.apis.responses import reply_schema as shown
from quire.server.apis.responses.items_schema import OutputItem
from quire.server.apis.responses.schema import ResponsesRequest, ShownCacheOptions, TextFormat
from quire.server.apis.responses.tools import ToolParam
from quire.server.requests.fields import Usage


@dataclass(frozen=True, slots=True)
class ResponseShape:
    """The fields of a response that are known once its request was checked."""

    request: ResponsesRequest
    defaults: Mapping[str, Any]
    """The model's default sampling parameters."""
    id: str
    created_at: int
    model: str
    is_stored: bool
    num_bytes: int
    """Size of the request, which the response repeats in part."""

    def response(
        self,
        status: shown.ResponseStatus,
        output: Sequence[OutputItem] = (),
        usage: shown.ResponseUsage | None = None,
        error: shown.ResponseError | None = None,
        ended_at: int | None = None,
    ) -> shown.Response:
        """The response in this state."""
        request = self.request
        is_cut = status == "incomplete"
        return shown.Response(
            id=self.id,
            created_at=self.created_at,
            status=status,
            completed_at=ended_at if status == "completed" else None,
            background=request.background is True,
            error=error,
            incomplete_details=shown.IncompleteDetails(reason="max_output_tokens")
            if is_cut
            else None,
            model=self.model,
            output=list(output),
            reasoning=_reasoning(request),
            store=self.is_stored,
            text=_text(request),
            **request.repeated_fields(),
            tools=[_tool(tool) for tool in request.tools or ()],
            top_logprobs=request.top_logprobs or 0,
            truncation=request.truncation or "disabled",
            usage=usage,
            metadata=request.metadata or {},
            temperature=self._sampling("temperature", 1.0),
            top_p=self._sampling("top_p", 1.0),
            presence_penalty=self._sampling("presence_penalty", 0.0),
            frequency_penalty=self._sampling("frequency_penalty", 0.0),
            prompt_cache_options=_cache_options(request),
            prompt_cache_retention=(request.prompt_cache_retention or "").replace("-", "_") or None,
            **{name: getattr(request, name) for name in _SAME_NAME},
        )

    def bare_failure(self, error: shown.ResponseError | None) -> shown.Response:
        """A failed response without the request's fields, which may be large."""
        request = ResponsesRequest(input="", background=self.request.background)
        return replace(self, request=request).response("failed", error=error)

    def _sampling(self, name: str, default: float) -> float:
        asked: float | None = getattr(self.request, name)
        return self.defaults.get(name, default) if asked is None else asked


_SAME_NAME = (
    "instructions", "max_output_tokens", "max_tool_calls", "previous_response_id",
    "prompt_cache_key", "safety_identifier", "user",
)  # fmt: skip
"""Fields that the reply repeats as they are."""


def usage_of_response(usage: Usage) -> shown.ResponseUsage:
    """A reply's usage by the names of a response."""
    details = usage.completion_tokens_details
    reasoning_tokens = details.reasoning_tokens if details else 0
    return shown.ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=shown.InputTokensDetails(
            cached_tokens=usage.prompt_tokens_details.cached_tokens
        ),
        output_tokens=usage.completion_tokens,
        output_tokens_details=shown.OutputTokensDetails(reasoning_tokens=reasoning_tokens),
        total_tokens=usage.total_tokens,
    )


def _cache_options(request: ResponsesRequest) -> ShownCacheOptions | None:
    asked = request.prompt_cache_options
    if asked is None:
        return None
    return ShownCacheOptions(
        mode=asked.mode, ttl=asked.ttl, comparison_response_id=asked.comparison_response_id
    )


def _reasoning(request: ResponsesRequest) -> shown.ReplyReasoning:
    asked = request.reasoning
    if asked is None:
        return shown.ReplyReasoning()
    return shown.ReplyReasoning(
        effort=asked.effort, summary=asked.summary or asked.generate_summary
    )


def _text(request: ResponsesRequest) -> shown.ReplyText:
    asked = request.text
    if asked is None:
        return shown.ReplyText(format=TextFormat(type="text"))
    return shown.ReplyText(
        format=asked.format or TextFormat(type="text"), verbosity=asked.verbosity
    )


def _tool(tool: ToolParam) -> shown.ReplyTool:
    if tool.type == "namespace":
        tools = [_single_tool(each) for each in tool.tools or ()]
        return shown.ReplyNamespace(name=tool.name, description=tool.description, tools=tools)
    return _single_tool(tool)


def _single_tool(tool: ToolParam) -> shown.ReplyFunction | shown.ReplyCustomTool:
    name, description = tool.name, tool.description
    if tool.type == "custom":
        return shown.ReplyCustomTool(name=name, description=description, format=tool.format)
    return shown.ReplyFunction(
        name=name, description=description, parameters=tool.parameters, strict=tool.strict
    )
