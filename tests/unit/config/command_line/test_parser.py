"""Suggestions for typos, underscores, and options from files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire.cli.commands.serve import configure
from quire.config.command_line.engine_options import add_engine_options, engine_args
from quire.config.command_line.parser import Parser
from quire.errors import ConfigError


def parser() -> Parser:
    made = Parser("quire serve", "")
    add_engine_options(made)
    return made


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as exit_info:
        parser().parse(words)
    assert exit_info.value.code == 2
    return capsys.readouterr().err


def test_a_wrong_flag_suggests_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean --max-model-len?" in refusal(capsys, "--max-modle-len", "5")
    assert "did you mean" not in refusal(capsys, "--zzzz")
    assert "unexpected argument 'second'" in refusal(capsys, "first", "second")


def test_no_flag_is_guessed_from_its_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown option --max-model" in refusal(capsys, "--max-model", "5")


def test_underscores_are_dashes() -> None:
    assert engine_args(parser().parse(["--max_model_len=1k"])).max_model_len == 1000


def test_words_may_stand_on_both_sides_of_options(capsys: pytest.CaptureFixture[str]) -> None:
    made = Parser("quire run", "")
    made.add_argument("words", nargs="*")
    made.add_argument("--seed", type=int)
    made.add_argument("--stop", nargs="+")
    args = made.parse(["model", "--seed", "1", "a", "prompt", "--stop", "x", "y"])
    assert (args.words, args.seed, args.stop) == (["model", "a", "prompt"], 1, ["x", "y"])
    assert made.parse(["--seed", "1", "model", "--stop=x", "-"]).words == ["model", "-"]
    with pytest.raises(SystemExit):
        made.parse(["model", "--seed", "1", "prompt", "--sead", "2"])
    assert "unknown option --sead; did you mean --seed?" in capsys.readouterr().err


def test_the_model_is_positional_or_named() -> None:
    assert engine_args(parser().parse(["some/model"])).model == "some/model"
    assert engine_args(parser().parse(["--model", "m"])).model == "m"
    assert engine_args(parser().parse(["m", "--model", "m"])).model == "m"
    with pytest.raises(ConfigError, match="two models"):
        engine_args(parser().parse(["m", "--model", "n"]))


def test_vllms_other_options_are_judged_by_the_engine_args() -> None:
    neutral = ["m", "-tp", "1", "--tensor-parallel-size=1", "--no-enable-expert-parallel"]
    assert engine_args(parser().parse(neutral)).model == "m"
    assert engine_args(parser().parse(["m", "-tp", "2"])).tensor_parallel_size == 2
    with pytest.raises(ConfigError, match="prefill_context_parallel_size=2"):
        engine_args(parser().parse(["-pcp", "2"]))


def test_a_file_gives_options_and_the_command_line_wins(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(
        "model: from/file\nmax_model_len: 2k\nserved-model-name: [a, b]\n"
        "enable-prefix-caching: false\nhf-overrides: {x: 1}\nseed:\n"
    )
    args = engine_args(parser().parse(["--config", str(file), "--max-model-len", "7"]))
    assert (args.model, args.max_model_len, args.served_model_name) == ("from/file", 7, ["a", "b"])
    assert args.enable_prefix_caching is False
    assert args.hf_overrides == {"x": 1}
    assert engine_args(parser().parse([f"--config={file}", "m", "--model", "m"])).model == "m"


def test_a_file_may_be_json(tmp_path: Path) -> None:
    file = tmp_path / "engine.json"
    file.write_text(json.dumps({"max_num_seqs": 3}))
    assert engine_args(parser().parse(["--config", str(file)])).max_num_seqs == 3


def test_lists_of_a_file(tmp_path: Path) -> None:
    """An empty one is left out, as in vLLM; objects are JSON."""
    file = tmp_path / "serve.yaml"
    file.write_text("middleware: []\nallowed-origins: []\nlora-modules: [{name: a, path: /x}]\n")
    serving = Parser(prog="quire serve")
    configure(serving)
    args = serving.parse(["--config", str(file)])
    assert args.lora_modules == ['{"name": "a", "path": "/x"}']
    assert not hasattr(args, "middleware")
    assert not hasattr(args, "allowed_origins")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("max-modle-len: 5", "did you mean --max-model-len?"),
        ("- 1", "option: value"),
        ("a: [", "engine.yaml"),
        ("max-model-len: many", "many"),
    ],
)
def test_a_wrong_file_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, complaint: str
) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(text)
    assert complaint in refusal(capsys, "--config", str(file))


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere.yaml" in refusal(capsys, "--config", "nowhere.yaml")
