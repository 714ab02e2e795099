"""Reasoning by family: what is reasoning and what is answer, however the text is divided."""

from __future__ import annotations

import pytest
from replies import message_of

from quire.parsers.events import CallBegins, Message, ToolCall
from quire.parsers.format import ReplyFormat
from quire.parsers.parser import ReplyParser
from quire.parsers.registry import REASONING_FORMATS
from quire.parsers.tool_formats.hermes import HermesCalls

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
CALLED = [ToolCall("f", None, "{}", is_complete=True)]
OPEN, CLOSE = "<|open|>", "<|close|>"


@pytest.mark.parametrize(
    ("name", "text", "reasoning", "content"),
    [
        ("cohere_command3", "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b"
         "<|END_RESPONSE|>", "a", "b"),
        ("cohere_command4", "<|START_THINKING|>a<|END_THINKING|><|START_TEXT|>b<|END_TEXT|>",
         "a", "b"),
        ("deepseek_r1", "<think>a</think>b", "a", "b"),
        ("deepseek_r1", "<think>a</think>b</think>c", "a", "b</think>c"),
        ("deepseek_v3", "no tags", "", "no tags"),
        ("deepseek_v3", "</think>stray", "", "stray"),
        ("deepseek_v4", "<think>a\n</think>b<think>c</think>d", "ac", "bd"),
        ("ernie45", "<think>a</think>\n\n<response>\nb c\n</response>\n", "a", "b c"),
        ("ernie45", "<think>a</think>\nb\n", "a", "b\n"),
        ("gemma4", "<|channel>thought\na\n<channel|>b", "a", "b"),
        ("gemma4", "<|channel>though<channel|>b", "though", "b"),
        ("glm45", "b<think>a </think>c", "a", "bc"),
        ("granite", "Here is my thought process: a Here is my response: b", " a ", " b"),
        ("granite", "Here's my thought process:a Here it is.Here's my response:b",
         "a Here it is.", "b"),
        ("granite", "Here is my answer", "", "Here is my answer"),
        ("granite_thinking_parser", "<think>a\n</think>\nb", "a", "b"),
        ("hunyuan_a13b", "<think>\na\n</think>\n<answer>\nb\n</answer>", "a", "b"),
        ("hunyuan_a13b", "<think>\n\n</think>\n<answer>\nb", "", "b"),
        ("inkling", "<|message_model|><|content_thinking|>a<|end_message|><|message_model|>"
         "<|content_text|>b<|end_message|>", "a", "b"),
        ("k2_horizon", "<ifm|think_fast>a</ifm|think_fast>b", "a", "b"),
        ("kimi_k2", "<think>a \n</think>b", "a", "b"),
        ("kimi_k3", f"{OPEN}think<|sep|>a{CLOSE}think<|sep|>{OPEN}response<|sep|>b"
         f"{CLOSE}response<|sep|>{CLOSE}message<|sep|>", "a", "b"),
        ("minimax_m2_append_think", "a</think>b", "", "a</think>b"),
        ("minimax_m3", "<mm:think>a</mm:think>b</mm:think>", "a", "b</mm:think>"),
        ("mistral", "[THINK]a\n[/THINK]b[/THINK]", "a", "b"),
        ("mistral", "<think>a</think>b", "a", "b"),
        ("muse_glimmer", "to=self<|message|>a<|eom|><|start|>assistant to=user<|message|>b<|eot|>",
         "a", "b"),
        ("nemotron_v3", "<think>a\n</think>b", "a", "b"),
        ("plamo3", "<|plamo:begin_think:plamo|>a<|plamo:end_think:plamo|>b<|plamo:tag|>",
         "a", "b"),
        ("qwen3", "<think>\na\n</think>\n\nb</think>", "\na\n", "\n\nb"),
        ("qwen3", "<think>a < b </thin", "a < b </thin", ""),
        ("seed_oss", "<seed:think>a</seed:think>b", "a", "b"),
        ("apriel", "Here are my reasoning steps:\na\n[BEGIN FINAL RESPONSE]\nb\n"
         "[END FINAL RESPONSE]\n", "\na", "b"),
        ("solar_open", "<|think|>a<|end|><|begin|>assistant<|content|>b<|end|>", "a", "b"),
        ("solar_open", "<|content|>b", "", "b"),
    ],
)  # fmt: skip
def test_reply(name: str, text: str, reasoning: str, content: str) -> None:
    format = ReplyFormat(REASONING_FORMATS[name])
    assert message_of(format, text) == Message(content, reasoning)


@pytest.mark.parametrize(
    ("name", "text", "reasoning", "content"),
    [
        ("deepseek_r1", "a</think>b", "a", "b"),
        ("deepseek_r1", "<think>a</think>b", "a", "b"),
        ("deepseek_r1", "\n <think>a", "a", ""),
        ("deepseek_r1", "\n a", "\n a", ""),
        ("gemma4", "a<channel|>b", "a", "b"),
        ("gemma4", "thought\na<channel|>b", "a", "b"),
        ("minimax_m2_append_think", "a</think>b", "", "<think>a</think>b"),
        ("step3p5", "a\n</think>\nb", "a", "\nb"),
    ],
)
def test_reply_to_a_prompt_that_ends_within_the_reasoning(
    name: str, text: str, reasoning: str, content: str
) -> None:
    format = ReplyFormat(REASONING_FORMATS[name])
    assert message_of(format, text, is_reasoning=True) == Message(content, reasoning)


@pytest.mark.parametrize("name", sorted(REASONING_FORMATS))
def test_every_family(name: str) -> None:
    tags = REASONING_FORMATS[name]
    whole = Message("b", "a")
    if tags.is_content:
        whole = Message(f"{tags.begin}a{tags.end}b")
    for begin in tags.begins:
        for end in tags.ends:
            if not tags.is_content:
                assert message_of(ReplyFormat(tags), f"{begin}a{end}b") == whole
            assert message_of(ReplyFormat(tags), f"a{end}b", is_reasoning=True) == whole


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("qwen3", f"a\n\n{CALL}", Message("", "a", CALLED)),
        ("qwen3", f"a{CALL}</think>b", Message("b", "a", CALLED)),
        ("qwen3", "a <tool_call> b</think>c", Message("c", "a <tool_call> b")),
        ("qwen3", 'a <tool_call>{"</think>"b', Message('"b', 'a <tool_call>{"')),
        ("qwen3", "a <tool_call>", Message("", "a <tool_call>")),
        ("deepseek_r1", f"a {CALL}</think>{CALL}", Message("", f"a {CALL}", CALLED)),
    ],
)
def test_call_within_unclosed_reasoning(name: str, text: str, message: Message) -> None:
    format = ReplyFormat(REASONING_FORMATS[name], HermesCalls())
    assert message_of(format, text, {"f": {}}, is_reasoning=True) == message


def test_calls_are_not_looked_for_in_reasoning_without_tools() -> None:
    format = ReplyFormat(REASONING_FORMATS["qwen3"], HermesCalls())
    assert message_of(format, f"<think>{CALL}</think>a") == Message("a", CALL)


def test_reasoning_is_over_as_soon_as_a_call_begins() -> None:
    parser = ReplyParser(
        ReplyFormat(REASONING_FORMATS["qwen3"], HermesCalls()), {"f": {}}, is_reasoning=True
    )
    parser.feed('a<tool_call>{"name": "f", ')
    assert parser.is_reasoning
    assert parser.feed('"arguments": {')[0] == CallBegins(0, "f")
    assert not parser.is_reasoning


@pytest.mark.parametrize(
    ("name", "prompt", "is_open"),
    [
        ("qwen3", "<|im_start|>assistant\n<think>\n", True),
        ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("qwen3", "<|im_start|>assistant\n", False),
        ("qwen3", "<|im_start|>user\nWhat is <think>?<|im_end|>\n<|im_start|>assistant\n", False),
        ("qwen3", "", False),
        ("qwen3", "What is <think>? Assistant: ", False),
        ("deepseek_r1", "<｜User｜>a</think><｜Assistant｜><think>\n", True),
        ("deepseek_r1", "<｜User｜>a</think><｜Assistant｜>", True),
        ("deepseek_r1", "<｜Assistant｜></think>", False),
        ("deepseek_v3", "<｜Assistant｜></think>", False),
        ("kimi_k3", f"{OPEN}message<|sep|>{OPEN}think<|sep|>", True),
        ("kimi_k3", f"{OPEN}think<|sep|>{CLOSE}think<|sep|>", False),
        ("gemma4", "<|channel>thought\n<channel|><turn|>\n<|turn>model\n", False),
        ("gemma4", "<|turn>model\n<|channel>thought\n", True),
        ("mistral", "[SYSTEM_PROMPT]Write [THINK]a[/SYSTEM_PROMPT][INST]b[/INST]", False),
        ("granite", "<|end_of_text|>", False),
        ("cohere_command3", "<|START_THINKING|>", True),
        ("cohere_command3", "<|START_THINKING|><|END_THINKING|>", False),
    ],
)
def test_prompt_that_ends_with_the_begin_of_reasoning(
    name: str, prompt: str, is_open: bool
) -> None:
    tags = REASONING_FORMATS[name]
    assert tags.is_open_in(prompt) == is_open


@pytest.mark.parametrize(
    ("name", "prompt", "is_open"),
    [
        ("qwen3", "<|im_start|>assistant\n<think>\nLet me" + " see" * 1000, True),
        ("qwen3", "<|im_start|>assistant\n<think>a</think>b", False),
        ("qwen3", "<|im_start|>user\n<think><|im_end|>\n<|im_start|>assistant\nThe", False),
        ("deepseek_r1", "<think>a</think>b<｜Assistant｜>The", True),
        ("mistral", "[INST]Think: [THINK][/INST]The", False),
        ("seed_oss", "<seed:think>a<seed:eos><seed:bos>assistant\nThe", False),
        ("kimi_k3", f"{OPEN}think<|sep|>So", True),
        ("qwen3", "", False),
    ],
)
def test_prompt_that_ends_with_the_begin_of_a_reply(name: str, prompt: str, is_open: bool) -> None:
    assert REASONING_FORMATS[name].is_open_in(prompt, is_continued=True) == is_open


def test_only_the_end_of_a_prompt_is_read() -> None:
    class Prompt(str):
        num_read = 0

        def __getitem__(self, key: object) -> str:
            text = super().__getitem__(key)  # type: ignore[index]
            self.num_read += len(text)
            return text

    tags = REASONING_FORMATS["qwen3"]
    prompt = Prompt("<think>" + "word " * 100_000 + "<|im_start|>assistant\n")
    assert not tags.is_open_in(prompt, is_continued=True)
    assert prompt.num_read < 2_000
    prompt = Prompt("<think>" + "word " * 100_000)
    assert tags.is_open_in(prompt, is_continued=True)
    assert prompt.num_read < 2 * len(prompt)


@pytest.mark.parametrize("at", range(980, 1060))
def test_tag_anywhere_in_a_prompt(at: int) -> None:
    prompt = "<think>" + "a" * at
    assert REASONING_FORMATS["qwen3"].is_open_in(prompt, is_continued=True)


def test_first_family_with_the_most_common_tags_expects_them() -> None:
    first = next(tags for tags in REASONING_FORMATS.values() if tags.begin == "<think>")
    assert not first.is_implied
    assert first.ends_at_call


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        ("<assistant><think:1a2b>\n", "<think:1a2b>", "</think:1a2b>"),
        ("<think>, <think:1a2b>", "<think>", "</think>"),
        ("<think: >", "<think>", "</think>"),
        ("<think:" + "a" * 40 + "><x:1>", "<think>", "</think>"),
        ("", "<think>", "</think>"),
    ],
)
def test_tags_with_a_text_of_the_checkpoint(text: str, begin: str, end: str) -> None:
    tags = REASONING_FORMATS["hy_v3"].spelled_in(text)
    assert (tags.begin, tags.end) == (begin, end)
