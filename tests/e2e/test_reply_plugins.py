"""Parsers in files that the command line names, in a server of its own."""

from __future__ import annotations

import json
from pathlib import Path

import openai
from running_server import StartServer

PLUGIN = '''
import json

from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall, DeltaMessage, DeltaToolCall, ExtractedToolCallInformation, FunctionCall,
    ToolCall,
)
from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParser, ToolParserManager


@ToolParserManager.register_module("whole")
class WholeParser(ToolParser):
    """Every reply is a call, with the reply in it."""

    def extract_tool_calls(self, model_output, request):
        function = FunctionCall(name="f", arguments=json.dumps({"said": model_output}))
        return ExtractedToolCallInformation(
            tools_called=True, tool_calls=[ToolCall(function=function)], content=None)

    def extract_tool_calls_streaming(
        self, previous_text, current_text, delta_text, previous_token_ids, current_token_ids,
        delta_token_ids, request,
    ):
        text = json.dumps(delta_text)[1:-1]
        self.prev_tool_call_arr = [{"arguments": '{"said": "' + json.dumps(current_text)[1:]+ "}"}]
        if previous_text:
            function = DeltaFunctionCall(arguments=text)
        else:
            text = '{"said": "' + text
            function = DeltaFunctionCall(name="f", arguments=text)
        self.streamed_args_for_tool = [(self.streamed_args_for_tool or [""])[0] + text]
        return DeltaMessage(tool_calls=[DeltaToolCall(index=0, id="call_a", function=function)])


class Marks(BaseThinkingReasoningParser):
    start_token = "<think>"
    end_token = "</think>"


ReasoningParserManager.register_module("marks", module=Marks)
'''


def test_a_server_with_plugins(start_server: StartServer, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN)
    server = start_server(
        engine={"model": "demo", "served_model_name": ["demo"]},
        tool_parser_plugin=str(plugin),
        tool_call_parser="whole",
        reasoning_parser_plugin=str(plugin),
        reasoning_parser="marks",
        enable_auto_tool_choice=True,
    )
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as client:
        asked = {
            "model": "demo", "max_tokens": 20, "temperature": 0,
            "messages": [{"role": "user", "content": "Hello"}],
        }  # fmt: skip
        plain = client.chat.completions.create(**asked)  # type: ignore[call-overload]
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        choice = client.chat.completions.create(**asked, tools=[tool]).choices[0]  # type: ignore[call-overload]
        [call] = choice.message.tool_calls
        assert plain.choices[0].message.content
        assert json.loads(call.function.arguments).keys() == {"said"}
        assert choice.message.content is None
        told = ""
        for chunk in client.chat.completions.create(**asked, tools=[tool], stream=True):  # type: ignore[call-overload]
            for delta in chunk.choices[0].delta.tool_calls or ():
                told += delta.function.arguments
        assert json.loads(told) == json.loads(call.function.arguments)
