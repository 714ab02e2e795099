"""What models write that is not as their templates say: broken, mixed with text, or unusual."""

from __future__ import annotations

import pytest
from tests.fakes.replies import message_of

from quire.parsers.events import Message, ToolCall
from quire.parsers.format import ReplyFormat
from quire.parsers.registry import REASONING_FORMATS, TOOL_FORMATS

TOOLS = {"f": {}, "g": {}}
A = '{"a": 1}'
V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
V31 = "<｜tool▁call▁begin｜>f<｜tool▁sep｜>"
KIMI = "<|tool_call_begin|>functions.f:7 <|tool_call_argument_begin|>"


def call(name: str = "f", arguments: str = A, call_id: str | None = None) -> ToolCall:
    return ToolCall(name, call_id, arguments, is_complete=True)


def cut(arguments: str, call_id: str | None = None) -> ToolCall:
    return ToolCall("f", call_id, arguments)


def said(content: str, *calls: ToolCall) -> Message:
    return Message(content, tool_calls=list(calls))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        # brackets too many or too few, and arguments that are no JSON
        ("hermes", f'<tool_call>{{"name": "f", "arguments": {A}}}}}</tool_call> x',
         said(" x", call())),
        ("hermes", f'<tool_call>{{"name": "f", "arguments": {A}</tool_call> x',
         said(" x", call())),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": [1}</tool_call>\nx',
         said("\nx", cut('{"a": [1}'))),
        ("hermes", f'<tool_call>[{{"name": "f", "arguments": {A}}}, 3, {{"name": "g"}}]x',
         said("x", call(), call("g", "{}"))),
        ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>',
         said("", call("f", "{}"))),
        ("hermes", '<tool_call>{"name": "f", "arguments": ""}</tool_call>',
         said("", call("f", "{}"))),
        ("hermes", '<tool_call>{"name": "f", "arguments": </tool_call>', said("", cut(""))),
        ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>',
         said('<tool_call>{"name": "", "arguments": {}}</tool_call>')),
        ("hermes", f'<tool_call>{{"arguments": {A}, "name": "f"', said("", call())),
        ("hermes", '<tool_call>[1, {"name": "f"}]', said('<tool_call>[1, {"name": "f"}]')),
        # no mark closes these
        ("granite", f'So <tool_call> [{{"name": "f", "arguments": {A}}}]\nHere.',
         said("So\nHere.", call())),
        ("granite-20b-fc", f'<function_call> {{"name": "f", "arguments": {A}}} Done.',
         said(" Done.", call())),
        ("phi4_mini_json", f'functools[{{"name": "f", "parameters": {A}}}]', said("", call())),
        ("phi4_mini_json", "import functools\n\n@functools.cache",
         said("import functools\n\n@functools.cache")),
        ("phi4_mini_json", "functools[] text", said("functools[] text")),
        # JSON without marks
        ("llama3_json", f'Fine: {{"name": "x", "parameters": {A}}} Yes?',
         said("Fine: Yes?", call("x"))),
        ("llama3_json", f'<|python_tag|>{{"name": "f", "arguments": {A}}}; {{"type": "function", '
         '"name": "g"}', said("", call(), call("g", "{}"))),
        ("llama3_json", '{"name": "nobody"}', said('{"name": "nobody"}')),
        ("llama3_json", '{"name": "f", "age": 3} {"x": {"name": "f"}} { y }',
         said('{"name": "f", "age": 3} {"x": {"name": "f"}} { y }')),
        ("llama3_json", "<|python_tag|>print(1)", said("<|python_tag|>print(1)")),
        ("xlam", f'Sure.\n```json\n[{{"name": "f", "arguments": {A}}}]\n```',
         said("Sure.", call())),
        ("xlam", f'Sure.[TOOL_CALLS][{{"name": "f", "arguments": {A}}}]', said("Sure.", call())),
        ("xlam", "[a](b) [1, 2]\n```json\n[3]\n```", said("[a](b) [1, 2]\n```json\n[3]\n```")),
        # Mistral's forms
        ("mistral", f"hi[TOOL_CALLS]f{A}[TOOL_CALLS]g[ARGS]{{}}x",
         said("hix", call(), call("g", "{}"))),
        ("mistral", f"[TOOL_CALLS]f[CALL_ID]Xy3456789[ARGS]{A}",
         said("", call("f", A, "Xy3456789"))),
        ("mistral", f'[TOOL_CALLS] [TOOL_CALLS] [{{"id": "Xy3456789", "name": "f", "arguments": '
         f'{A}}}, "x"]', said("", call("f", A, "Xy3456789"))),
        ("mistral", f'[TOOL_CALLS] {{"name": "f", "arguments": {A}}}\nmore',
         said("\nmore", call())),
        ("mistral", "[TOOL_CALLS]g[TOOL_CALLS]f", said("", call("g", "{}"), cut("{}"))),
        ("mistral", f"x f[TOOL_CALLS]{A}", said("x f", call())),
        ("mistral", f"f[TOOL_CALLS][ARGS]{A}[TOOL_CALLS]{A}",
         said(f"f[TOOL_CALLS]{A}", call())),
        ("mistral", f"f [TOOL_CALLS]{A}", said(f"f [TOOL_CALLS]{A}")),
        ("mistral", f"x[TOOL_CALLS]{A}", said(f"x[TOOL_CALLS]{A}")),
        ("mistral", "[TOOL_CALLS]no such tool", said("[TOOL_CALLS]no such tool")),
        # names between tokens
        ("deepseek_v3", f"{V3}f\n{A}<｜tool▁call▁end｜>x", said("x", call())),
        ("deepseek_v3", f"{V3}f\n```json\n{A}\n```", said("", call())),
        ("deepseek_v3", f"{V3}f", said(f"{V3}f")),
        ("deepseek_v31", f"Go.{V31}<｜tool▁call▁end｜>{V31}{A}",
         said("Go.", call("f", "{}"), call())),
        ("deepseek_v31", f"{V31}```json\n{A}\n```<｜tool▁call▁end｜>", said("", call())),
        ("deepseek_v31", "<｜tool▁calls▁begin｜>a<｜tool▁call▁begin｜>b",
         said("a<｜tool▁call▁begin｜>b")),
        ("kimi_k2", f"{KIMI}{A}<|tool_call_end|> x", said(" x", call("f", A, "functions.f:7"))),
        ("kimi_k2", f'{KIMI}{{"a": 1<|tool_call_end|>{KIMI}{A}<|tool_call_end|>',
         said("", cut('{"a": 1', "functions.f:7"), call("f", A, "functions.f:7"))),
        ("kimi_k2", f"<|tool_call_begin|>f<|tool_call_argument_begin|>{A}", said("", call())),
        ("kimi_k2", f"<|tool_call_begin|>x<|tool_call_argument_begin|>{A}",
         said(f"<|tool_call_begin|>x<|tool_call_argument_begin|>{A}")),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_calls_section_end|>x", said("x")),
        # marks around answers
        ("ernie45", "<response>\nYes.\n</response>\n", said("Yes.\n")),
        ("cohere_command3", "\n<|START_RESPONSE|>Yes.<|END_RESPONSE|>", said("Yes.")),
        ("cohere_command3", '<|START_ACTION|>[\n {"tool_call_id": "0", "tool_name": "f", '
         f'"parameters": {A}}}\n]<|END_ACTION|>', said("", call("f", A, "0"))),
        ("gigachat3", f'Wait.<|message_sep|>\n\nfunction call<|role_sep|>\n{{"name": "f", '
         f'"arguments": {A}}}', said("Wait.", call())),
        ("hunyuan_a13b", "助手：Yes", said("Yes")),
        ("inkling", f'<|content_text|>So.<|end_message|><|message_model|>f'
         f'<|content_invoke_tool_json|>{{"name":"f","args":{A}}}<|end_message|>',
         said("So.", call())),
        ("apertus", f'Hi <|tools_prefix|>[{{"f": {A}, "g": {{}}}}]',
         said("Hi", call(), call("g", "{}"))),
        ("apertus", '<|tools_prefix|>[{"f": "text"}]', said('<|tools_prefix|>[{"f": "text"}]')),
        ("internlm", "<|action_start|><|interpreter|>x", said("<|action_start|><|interpreter|>x")),
    ],
)  # fmt: skip
@pytest.mark.sweep(20)
def test_message(name: str, text: str, message: Message) -> None:
    assert message_of(ReplyFormat(None, TOOL_FORMATS[name]()), text, TOOLS) == message


def test_reasoning_ends_with_the_marks_of_an_answer() -> None:
    name = "cohere_command3"
    text = "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>"
    format = ReplyFormat(REASONING_FORMATS[name], TOOL_FORMATS[name]())
    assert message_of(format, text, TOOLS) == Message("Yes.", "Hm.")


def test_ids_of_a_certain_form() -> None:
    ids = {TOOL_FORMATS["mistral"]().make_id("f", i) or "" for i in range(50)}
    assert len(ids) == 50
    assert all(len(one) == 9 and one.isalnum() and one.isascii() for one in ids)
    assert TOOL_FORMATS["kimi_k2"]().make_id("f", 3) == "functions.f:3"
    assert TOOL_FORMATS["hermes"]().make_id("f", 3) is None
