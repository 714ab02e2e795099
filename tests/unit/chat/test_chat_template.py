"""Chat templates against transformers' apply_chat_template, and what is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from chat_templates import (
    AGENT_STYLE,
    FEATURES_STYLE,
    LLAMA3_STYLE,
    MACRO_STYLE,
    MISTRAL_STYLE,
    PARTS_STYLE,
    QWEN3_STYLE,
)
from rendered_here import rendered_here
from trained_tokenizers import byte_level

from quire.chat.messages import Images, template_messages
from quire.chat.rendering import detect_content_format
from quire.chat.template_files import read_chat_template, read_templates
from quire.chat.templates import ChatTemplates
from quire.errors import CheckpointError, ConfigError, RequestError

transformers = pytest.importorskip("transformers")

ROLES = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
TEMPLATES = {
    "llama3": LLAMA3_STYLE,
    "qwen3": QWEN3_STYLE,
    "mistral": MISTRAL_STYLE,
    "features": FEATURES_STYLE,
    "agent": AGENT_STYLE,
}

HELLO = {"role": "user", "content": ' Hello, "world" & <all>\n你好 '}
ANSWER = {"role": "assistant", "content": "Hi. "}
SYSTEM = {"role": "system", "content": "Be brief."}
THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes.", "name": None}
REASONED = {"role": "assistant", "content": "Yes.", "reasoning": "because"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": "ü<"}}}
    ],
}
RESULT = {"role": "tool", "content": "3"}
TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "é": []}}}
]

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [HELLO],
    "answered": [HELLO, ANSWER],
    "system": [SYSTEM, HELLO],
    "long": [HELLO, ANSWER, HELLO, ANSWER, HELLO],
    "thought": [HELLO, THOUGHT, HELLO, THOUGHT],
    "reasoned": [HELLO, REASONED],
    "tools": [SYSTEM, HELLO, CALL, RESULT],
    "developer": [{"role": "developer", "content": " Be brief. "}, HELLO],
    "turns": [HELLO, CALL, RESULT, {**CALL, "content": "More."}, RESULT, ANSWER, HELLO],
}


@pytest.fixture(scope="module")
def theirs() -> transformers.PreTrainedTokenizerFast:
    return transformers.PreTrainedTokenizerFast(tokenizer_object=byte_level(), **ROLES)


@pytest.mark.parametrize("template", sorted(TEMPLATES))
@pytest.mark.parametrize("conversation", sorted(CONVERSATIONS))
@pytest.mark.parametrize("with_tools", [True, False])
@pytest.mark.parametrize("prompted", [True, False])
def test_renders_as_transformers(
    theirs: transformers.PreTrainedTokenizerFast,
    template: str,
    conversation: str,
    with_tools: bool,
    prompted: bool,
) -> None:
    messages = CONVERSATIONS[conversation]
    tools = TOOLS if with_tools else None

    def ours() -> str:
        return rendered_here(
            TEMPLATES[template],
            messages,
            roles=ROLES,
            tools=tools,
            add_generation_prompt=prompted,
            variables={"enable_thinking": False},
        )

    try:
        expected = theirs.apply_chat_template(
            messages,
            tools=tools,
            chat_template=TEMPLATES[template],
            add_generation_prompt=prompted,
            enable_thinking=False,
            tokenize=False,
        )
    except Exception as error:
        with pytest.raises(RequestError, match=str(error)):
            ours()
    else:
        assert ours() == expected


CALL_ALONE = {**CALL, "content": None}


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages if m['content'] is none %}none{% endfor %}",
        "{% for m in messages if m.content == none %}none{% endfor %}",
        "{% for m in messages %}{% set c = m.content %}{{ 'none' if c is none }}{% endfor %}",
        "{% macro f(x) %}{{ 'none' if x is none }}{% endmacro %}"
        "{% for m in messages %}{{ f(m.content) }}{% endfor %}",
    ],
)
def test_a_template_that_asks_for_it_gets_no_content(template: str) -> None:
    for call in (CALL_ALONE, {key: value for key, value in CALL.items() if key != "content"}):
        messages = [HELLO, call, RESULT, HELLO]
        assert rendered_here(template, messages, add_generation_prompt=False) == "none"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for m in messages %}[{{ m.content }}]{% endfor %}", "[a][]"),
        ("{% for m in messages %}[{{ m.content | trim | tojson }}]{% endfor %}", '["a"][""]'),
        ("{% for m in messages %}{{ '[' + m['content'] + ']' }}{% endfor %}", "[a][]"),
        (
            "{% for m in messages %}{% set c = m.content %}{% if 'x' in c %}x{% endif %}"
            "{% if c is none %}none{% else %}[{{ c }}]{% endif %}{% endfor %}",
            "[a][]",
        ),
        (
            "{% for m in messages %}[{% for p in m.content %}{{ p.text }}{% endfor %}]{% endfor %}",
            "[a][]",
        ),
    ],
)
def test_other_templates_get_empty_content(template: str, expected: str) -> None:
    messages = [{"role": "user", "content": "a"}, CALL_ALONE]
    assert rendered_here(template, messages, add_generation_prompt=False) == expected


def test_documents_reach_the_template_as_with_transformers(
    theirs: transformers.PreTrainedTokenizerFast,
) -> None:
    documents = [{"title": "T<b>", "text": "ü"}, {"title": "S", "text": "more"}]
    expected = theirs.apply_chat_template(
        [HELLO], documents=documents, chat_template=AGENT_STYLE, tokenize=False
    )
    given = {"documents": documents, "add_generation_prompt": False}
    assert rendered_here(AGENT_STYLE, [HELLO], roles=ROLES, **given) == expected


@pytest.mark.parametrize("template", ["llama3", "qwen3", "mistral"])
def test_continues_the_final_message_as_transformers(
    theirs: transformers.PreTrainedTokenizerFast, template: str
) -> None:
    for messages in ([HELLO, ANSWER], [HELLO, {"role": "assistant", "content": "It is"}]):
        expected = theirs.apply_chat_template(
            messages,
            chat_template=TEMPLATES[template],
            continue_final_message=True,
            tokenize=False,
        )
        rendered = rendered_here(
            TEMPLATES[template],
            messages,
            roles=ROLES,
            add_generation_prompt=False,
            continue_final_message=True,
        )
        assert rendered == expected


def test_the_templates_own_words_reach_the_user() -> None:
    with pytest.raises(RequestError) as caught:
        rendered_here(MISTRAL_STYLE, [ANSWER, HELLO], roles=ROLES)
    assert str(caught.value) == (
        "Conversation roles must alternate user/assistant/user/assistant/..."
    )


def test_content_parts_are_joined_or_kept() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c"]
    messages = [{"role": "user", "content": parts}]
    assert detect_content_format(MISTRAL_STYLE) == "string"
    rendered = rendered_here(MISTRAL_STYLE, messages, roles=ROLES)
    assert rendered == "<|begin|>[INST] a\nb\nc [/INST]"
    for source in (PARTS_STYLE, MACRO_STYLE):
        assert detect_content_format(source) == "openai"
        assert "abc" in rendered_here(source, messages).replace("\n", "")
        assert "abc" in rendered_here(source, [{"role": "user", "content": "abc"}])
    with pytest.raises(RequestError, match=r"UndefinedError|has no attribute"):
        rendered_here(PARTS_STYLE, messages, content_format="string")


def test_a_loop_over_calls_is_none_over_content() -> None:
    source = (
        "{% for message in messages %}{% if message.tool_calls is defined %}"
        "{% set calls = message.tool_calls %}{% else %}{% set calls = message.content %}"
        "{% endif %}{% for call in calls %}{% endfor %}{% endfor %}"
    )
    assert detect_content_format(source) == "string"
    assert detect_content_format(source.replace("message.tool_calls %}", "[] %}")) == "openai"


def test_no_tool_calls_are_none_for_every_template() -> None:
    source = "{% for message in messages %}{{ 'tool_calls' in message }}{% endfor %}"
    for none in ({}, {"tool_calls": []}, {"tool_calls": None}):
        assert rendered_here(source, [{**ANSWER, **none}]) == "False"
    assert rendered_here(source, [{**ANSWER, "tool_calls": [{"name": "f"}]}]) == "True"


def test_the_result_of_a_tool_is_text_for_every_template() -> None:
    parts = [{"type": "text", "text": "3"}, {"type": "text", "text": "4"}]
    source = (
        "{% for message in messages %}{% if message.role == 'tool' %}<{{ message.content }}>"
        "{% else %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}"
        "{% endfor %}"
    )
    assert detect_content_format(source) == "openai"
    messages = [{"role": "user", "content": "a"}, {"role": "tool", "content": parts}]
    assert rendered_here(source, messages) == "a<3\n4>"
    assert rendered_here(source, [messages[0], {"role": "tool", "content": "3"}]) == "a<3>"


@pytest.mark.parametrize("template", [LLAMA3_STYLE, QWEN3_STYLE, MISTRAL_STYLE])
def test_templates_that_print_content_want_text(template: str) -> None:
    assert detect_content_format(template) == "string"


@pytest.mark.parametrize("content", ["m.content", "m['content']", "m.get('content')", "c"])
def test_text_stays_text_for_templates_that_take_both(content: str) -> None:
    source = (
        "{% for m in messages %}{% set c = m.content %}{% if CONTENT is string %}{{ c }}!{% else %}"
        "{% for part in c %}{{ part.text }};{% endfor %}{% endif %}{% endfor %}"
    ).replace("CONTENT", content)
    parts = [{"type": "text", "text": "a"}, "b"]
    assert rendered_here(source, [{"role": "user", "content": "a"}]) == "a!"
    assert rendered_here(source, [{"role": "user", "content": parts}]) == "a;b;"
    given = {"content_format": "openai"}
    assert rendered_here(source, [{"role": "user", "content": "a"}], **given) == "a;"


def test_templates_that_search_what_they_ask_for_get_a_text() -> None:
    source = (
        "{% for m in messages %}{{ 'x' if m.content is not none }}"
        "{{ 'y' if 'a' in m.content else 'n' }}{% endfor %}"
    )
    assert rendered_here(source, [CALL_ALONE]) == "xn"


def test_arguments_of_tool_calls_may_be_json_text() -> None:
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": None}}]}
    assert '"arguments": {}}' in rendered_here(QWEN3_STYLE, [HELLO, call])
    call["tool_calls"] = [{"function": {"name": "f", "arguments": '{"x": 1}'}}]
    assert '"arguments": {"x": 1}}' in rendered_here(QWEN3_STYLE, [HELLO, call])


def test_templates_that_join_arguments_to_a_text_get_them_so() -> None:
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name + c.function.arguments }}{% endfor %}{% endfor %}"
    )
    for call in (CALL, CALL_ALONE):
        assert rendered_here(source, [HELLO, call]) == 'add{"a": 1, "b": "ü<"}'
    source = "{% for m in messages %}{{ m.tool_calls + 1 }}{% endfor %}"
    with pytest.raises(RequestError, match="TypeError"):
        rendered_here(source, [CALL])


def test_malformed_arguments_in_the_history_are_empty() -> None:
    for arguments in ("{x", "[1]", "3"):
        calls = [{"function": {"name": "f", "arguments": arguments}}] * 2
        call = {"role": "assistant", "tool_calls": copy.deepcopy(calls)}
        assert rendered_here(QWEN3_STYLE, [HELLO, call]).count('"arguments": {}}') == 2


def test_fields_of_parts_that_openai_does_not_know_reach_the_template() -> None:
    source = (
        "{% for m in messages %}{% for part in m['content'] %}{{ part['text'] }}"
        "{{ part.get('cache_control', '-') }}{{ part.get('uuid', '') }}{% endfor %}{% endfor %}"
    )
    assert detect_content_format(source) == "openai"
    part = {"type": "input_text", "text": "a", "cache_control": "short", "uuid": "1"}
    content = [part, "b", {"type": "text", "text": None}]
    assert rendered_here(source, [{"role": "user", "content": content}]) == "ashortb-"


@pytest.mark.parametrize("given", ["reasoning", "reasoning_content", "thinking"])
@pytest.mark.parametrize(
    "read", ["reasoning", "reasoning_content", "thinking", "thought", "tool_plan"]
)
def test_reasoning_reaches_every_template(given: str, read: str) -> None:
    source = f"{{% for m in messages %}}{{{{ m.{read} }}}};{{% endfor %}}"
    answers = [{**ANSWER, given: "why"}, {**ANSWER, given: "why", "reasoning": ""}]
    assert rendered_here(source, [answers[0]]) == "why;"
    assert given == "reasoning" or rendered_here(source, [answers[1]]) == "why;"


THINKING_PARTS = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'thinking' %}[{{ part.thinking }}]"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %};{% endfor %}"
)


def test_reasoning_is_a_part_for_templates_that_read_such_parts() -> None:
    part = {"type": "thinking", "thinking": "how", "closed": True}
    calls = [{"function": {"name": "f", "arguments": "{}"}}]
    messages = [
        {"role": "system", "content": [part, "Do."]},
        {"role": "assistant", "content": "So.", "reasoning": "why"},
        {"role": "assistant", "reasoning": "why", "tool_calls": calls},
        {"role": "assistant", "content": [part, "So."], "reasoning": "why"},
        {"role": "assistant", "content": "So.", "reasoning": ""},
        {"role": "tool", "content": [part]},
    ]
    assert rendered_here(THINKING_PARTS, messages) == "[how]Do.;[why]So.;[why];[how]So.;So.;how;"
    flat = rendered_here(THINKING_PARTS, messages[:2], content_format="string")
    assert flat == "how\nDo.;So.;"


BAD_CALLS: dict[str, list[Any]] = {
    r"^messages\[1\].tool_calls\[1\].function must be an object with a name: {": [
        3, {}, {"function": None}, {"function": "f"}, {"function": {}}, {"function": {"name": 1}},
    ],
    r"^messages\[1\].tool_calls\[1\].function.arguments must be a string with a JSON object": [
        {"function": {"name": "f", "arguments": 5}}, {"name": "f", "arguments": [1]},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one message"),
        (["hi"], "has no role"),
        ([{"content": "x"}], "has no role"),
        ([{"role": "user", "content": 5}], "neither a string nor a list"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "a part of type 'image_url'; this model takes",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "a text part without text"),
        ([{"role": "user", "content": [{}]}], "a part of type None"),
        ([{"role": "user", "content": "x", "extra": object()}], "not a JSON value"),
        ([{"role": "user", "content": "x", "tool_calls": 5}], "tool_calls must be a list"),
        *(
            ([HELLO, {"role": "assistant", "tool_calls": [*CALL["tool_calls"], call]}], message)
            for message, calls in BAD_CALLS.items()
            for call in calls
        ),
    ],
)
def test_bad_messages_are_named(messages: list[Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        rendered_here(QWEN3_STYLE, messages)
    assert caught.value.parameter == "messages"


def test_messages_are_not_changed() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}]}, dict(ANSWER)]
    before = json.dumps(messages)
    rendered_here(
        MISTRAL_STYLE,
        messages,
        roles=ROLES,
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert json.dumps(messages) == before


def test_conflicting_and_reserved_arguments_are_refused() -> None:
    with pytest.raises(RequestError, match="Cannot set both"):
        rendered_here(QWEN3_STYLE, add_generation_prompt=True, continue_final_message=True)
    for name in ("messages", "tokenize", "self"):
        with pytest.raises(RequestError, match=f"must not hold '{name}'"):
            rendered_here(QWEN3_STYLE, variables={name: True})


def test_without_a_template_the_error_says_what_to_do() -> None:
    with pytest.raises(RequestError, match="no chat template: give one"):
        rendered_here({})
    with pytest.raises(RequestError, match="name one of: rag, tool_use"):
        rendered_here({"rag": "a", "tool_use": "b"})


def test_named_templates(tmp_path: Path) -> None:
    value = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "with tools"},
    ]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    templates = read_templates(tmp_path)
    assert rendered_here(templates) == "plain"
    assert rendered_here(templates, tools=TOOLS) == "with tools"
    assert rendered_here(templates, chat_template="tool_use") == "with tools"
    assert rendered_here(templates, chat_template="{{ messages|length }}") == "1"


def test_files_of_their_own_count_first(tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_text('{"chat_template": "json"}')
    assert read_templates(tmp_path) == {"default": "json"}
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "config"}')
    assert read_templates(tmp_path) == {"default": "config"}
    (tmp_path / "chat_template.jinja").write_text("jinja")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert read_templates(tmp_path) == {"default": "jinja", "tool_use": "tools"}


def test_the_chat_template_option(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("from file")
    assert read_chat_template(str(tmp_path / "t.jinja")) == "from file"
    assert read_chat_template("{{ messages }}") == "{{ messages }}"
    with pytest.raises(ConfigError, match="neither a file nor a Jinja template"):
        read_chat_template("missing.jinja")
    with pytest.raises(ConfigError, match="longer than"):
        read_chat_template("{{ x }}" * (1 << 20))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "neither a text nor texts by name"),
        ([{"name": ["a"], "template": "b"}], "neither a text nor texts by name"),
        ([{"name": "a"}], "neither a text nor texts by name"),
        ({"a": {"b": "c"}}, "neither a text nor texts by name"),
        ("x" * (1 << 21), "too long"),
        ({str(number): "x" for number in range(1000)}, "1000 chat templates; at most"),
    ],
)
def test_templates_of_another_shape_are_refused(tmp_path: Path, value: Any, message: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    with pytest.raises(CheckpointError, match=message):
        read_templates(tmp_path)


def test_variables_reach_the_template() -> None:
    templates = ChatTemplates({"default": "{{ bos_token }}{{ x }}{{ documents[0].title }}"}, ROLES)
    options: dict[str, Any] = {"documents": [{"title": "T"}], "variables": {"x": [1]}}
    assert rendered_here(templates, **options) == "<|begin|>[1]T"
    own = {"documents": [{}], "variables": {"bos_token": "B"}}
    assert rendered_here(templates, **own) == "B"


@pytest.mark.parametrize("form", ["openai", "string"])
def test_the_result_of_a_tool_may_have_images(form: Any) -> None:
    """Text alone is a string for all templates, as in vLLM."""
    image, text = {"type": "image"}, {"type": "text", "text": "x"}
    images = Images({"image": "<image>"})

    def content(*parts: Any) -> Any:
        message = {"role": "tool", "content": [*parts]}
        return template_messages([message], form, images=images)[0]["content"]

    assert content(text, text) == "x\nx"
    assert content(text, image) == ([text, image] if form == "openai" else "<image>\nx")


@pytest.mark.parametrize(
    ("asked", "is_read"),
    [
        ("part.type in ['text', 'thinking']", True),
        ("'thinking' == part.type", True),
        ("[part] | selectattr('type', 'equalto', 'thinking') | list", True),
        ("'thinking' in part", False),
        ("[part] | selectattr('thinking') | list", False),
    ],
)
def test_templates_ask_for_parts_with_reasoning_in_other_ways(asked: str, is_read: bool) -> None:
    source = THINKING_PARTS.replace("part.type == 'thinking'", f"part.thinking and {asked}")
    answer = {"role": "assistant", "content": "So.", "reasoning": "why"}
    assert rendered_here(source, [answer]) == ("[why]So.;" if is_read else "So.;")
