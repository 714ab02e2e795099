"""`quire run`: one answer from a model in this process, and what the plain words mean."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.cli import main
from quire.cli.commands.chat import split_words
from quire.cli.local_conversation import LocalConversation
from quire.cli.repl import calls_message
from quire.config.checkpoint.model_files import chat_sampling_params
from quire.config.engine_args import EngineArgs
from quire.errors import ConfigError
from quire.params import SamplingParams
from quire.parsers.events import Message


def test_words(tmp_path: Path) -> None:
    here = str(tmp_path)
    assert split_words([], None) == (None, None)
    assert split_words([here], None) == (here, None)
    assert split_words(["org/name"], None) == ("org/name", None)
    assert split_words(["What is 17 + 25?"], None) == (None, "What is 17 + 25?")
    assert split_words(["Hello!"], None) == (None, "Hello!")
    assert split_words(["Grüße"], None) == (None, "Grüße")
    assert split_words(["demo"], None) == ("demo", None)
    assert split_words(["either/or what?"], None) == (None, "either/or what?")
    assert split_words(["qwen3:0.6b"], None) == ("qwen3:0.6b", None)
    assert split_words(["m", "hi"], None) == ("m", "hi")
    assert split_words(["hi"], "m") == ("m", "hi")
    with pytest.raises(ConfigError, match="quotes"):
        split_words(["What", "is", "this"], None)
    with pytest.raises(ConfigError, match="quotes"):
        split_words(["What", "is"], "m")


@pytest.mark.parametrize("word", ["lama", "llama9:1b", "Hello", "a" * 300])
def test_a_word_that_is_no_model_is_not_sent_to_the_demo_model(
    capsys: pytest.CaptureFixture[str], word: str
) -> None:
    assert main(["run", word]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert f"the model {word!r} was not found." in told.err
    assert f"quire run demo {word}" in told.err


def test_a_mistyped_model_is_suggested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hub/models--Qwen--Qwen3-0.6B/snapshots").mkdir(parents=True)
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama/config.json").write_text("{}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    meant = {
        "lama": "llama", "./lama": "llama", "qwen3-0.6": "Qwen/Qwen3-0.6B", "dmo": "demo",
        "Qwen/Qwen-0.6B": "Qwen/Qwen3-0.6B",
    }  # fmt: skip
    for word, model in meant.items():
        commands = [
            ["run", word, "hi"],
            ["explain", word],
            *([] if "/" in word else [["run", word]]),
        ]
        for command in commands:
            assert main(command) == 1
            assert f"Did you mean {model}?" in capsys.readouterr().err, command
    assert main(["run", "unknown"]) == 1
    assert "on this machine: demo, llama, Qwen/Qwen3-0.6B." in capsys.readouterr().err
    assert split_words(["Qwen/Qwen3-0.6B"], None) == ("Qwen/Qwen3-0.6B", None)


def test_the_whole_name_is_in_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "llama9:1b"]) == 1
    assert "'llama9:1b'" in capsys.readouterr().err


def test_a_folder_of_models_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a/config.json", "snapshots/123/config.json", "b/model.gguf"):
        (tmp_path / "above" / name).parent.mkdir(parents=True)
        (tmp_path / "above" / name).write_text("{}")
    assert main(["run", str(tmp_path / "above"), "hi"]) == 1
    told = capsys.readouterr().err
    for model in ("a", "b/model.gguf", "snapshots/123"):
        assert str(tmp_path / "above" / model) in told


def test_people_get_moderate_sampling_where_the_model_recommends_none(model_dir: Path) -> None:
    wanted = {
        "temperature": 0.5, "top_p": 0.95, "min_p": 0.05, "presence_penalty": 1.0,
    }  # fmt: skip
    conversation = LocalConversation(EngineArgs(model=str(model_dir), max_num_seqs=2))
    try:
        params = conversation._params()
        assert {name: getattr(params, name) for name in wanted} == wanted
        conversation.settings["temperature"] = 1.0
        assert conversation._params().temperature == 1.0
        own = conversation.engine.model_config.get_diff_sampling_param()
        assert own == {}  # those of the API
    finally:
        conversation.close()
    del wanted["presence_penalty"]
    assert chat_sampling_params({"repetition_penalty": 1.1}) == wanted
    assert chat_sampling_params({"top_k": 20}) == {}


def test_a_model_without_a_chat_template_says_so(
    model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "bare"
    shutil.copytree(model_dir, model)
    config = json.loads((model / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    (model / "chat_template.jinja").unlink(missing_ok=True)
    assert main(["run", str(model), "hi", "--max-tokens", "3"]) == 0
    assert "has no chat template, so it continues your text" in capsys.readouterr().err


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["run", *words, "--max-tokens", "8", "--temperature", "0"]) == 0
    return capsys.readouterr().out


def test_one_answer_is_the_same_every_time(
    model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = answer(capsys, str(model_dir), "hello")
    assert first.endswith("\n")
    assert first == answer(capsys, "--model", str(model_dir), "hello")


def test_a_pipe_is_a_prompt(
    model_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answer(capsys, str(model_dir), "hello")
    monkeypatch.setattr("sys.stdin", io.StringIO("hello"))
    assert answer(capsys, str(model_dir)) == expected
    monkeypatch.setattr("sys.stdin", io.StringIO("  \n"))
    assert main(["run", str(model_dir)]) == 1
    assert "standard input is empty" in capsys.readouterr().err


def test_stopping_early_frees_the_request(model_dir: Path) -> None:
    conversation = LocalConversation(EngineArgs(model=str(model_dir), max_num_seqs=2))
    conversation.settings.update(temperature=0.0, max_tokens=50)
    try:
        stream = conversation.stream([{"role": "user", "content": "hello"}])
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        assert not conversation.engine.has_unfinished_requests()
        whole = [*conversation.stream([{"role": "user", "content": "hello"}])]
        assert conversation.counts.completion > 1
        assert conversation.counts.cached > 0
        assert whole
    finally:
        conversation.close()


def test_calls_of_tools_are_read(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that shows no tools: a text describes them, and the grammar knows their names."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    function = {"name": "add", "description": "Adds 1.", "parameters": schema}
    conversation = LocalConversation(EngineArgs(model=str(model_dir), max_num_seqs=2))
    conversation.tools = [{"type": "function", "function": function}]
    seen: list[Any] = []

    def generate(prompt: Any, params: SamplingParams) -> Iterator[str]:
        seen.append(
            (conversation.engine.get_tokenizer().decode(prompt["prompt_token_ids"]), params)
        )
        yield from ("I add. <tool_", 'call>{"name": "add", "arguments": {"a": 1}}</tool_call>')

    try:
        with monkeypatch.context() as patch:
            patch.setattr(conversation, "_generate", generate)
            messages = [{"role": "user", "content": "1 + 1?"}]
            reply = Message.of(conversation.stream(messages))
            [call] = reply.tool_calls
            assert (call.name, json.loads(call.arguments), call.is_complete) == (
                "add",
                {"a": 1},
                True,
            )
            result = {"role": "tool", "tool_call_id": call.id, "content": "It is 2."}
            [*conversation.stream([*messages, calls_message(reply), result])]
        assert "Adds 1." in seen[0][0]
        assert '\\"add\\"' in seen[0][1].structured_outputs.structural_tag
        assert "It is 2." in seen[1][0]
        conversation.engine.input_processor.check_grammar(seen[0][1].structured_outputs)
    finally:
        conversation.close()


def test_a_wrong_setting_is_one_line(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(model_dir), "hello", "--temperature", "9"]) == 1
    assert "temperature must be in [0, 2]" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["no/such.gguf", "./nothing", "/no/such.gguf", "~/nothing.gguf"])
def test_a_missing_file_is_named_before_a_pipe_is_read(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Endless(io.StringIO):
        def read(self, size: int | None = -1) -> str:
            raise AssertionError(size)

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("sys.stdin", Endless())
    assert main(["run", model]) == 1
    assert model.removeprefix("~/") in capsys.readouterr().err


def test_a_missing_image_is_named_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("quire.cli.local_conversation.LocalConversation", None)
    assert main(["run", "demo", "What is it?", "--image", "no/cat.png"]) == 1
    assert "no/cat.png" in capsys.readouterr().err
