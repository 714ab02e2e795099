"""Parts of JSON values, `-O`, and `--help=WORD`."""

from __future__ import annotations

import pytest

from quire.config.command_line.engine_options import add_engine_options, engine_args
from quire.config.command_line.parser import Parser


def parser() -> Parser:
    made = Parser("quire serve", "What it does.")
    add_engine_options(made)
    return made


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as exit_info:
        parser().parse(words)
    output = capsys.readouterr()
    assert exit_info.value.code == (2 if output.err else 0)
    return output.err or output.out


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--compilation-config.mode", "3"], {"mode": 3}),
        (["--compilation_config.mode=3"], {"mode": 3}),
        (["-cc.mode=3", "-cc.cudagraph_mode", "NONE"], {"mode": 3, "cudagraph_mode": "NONE"}),
        (["-O.mode=3"], {"mode": 3}),
        (["-cc.pass_config.fuse=true", "-cc.pass_config.x", "2k"],
         {"pass_config": {"fuse": True, "x": 2000}}),
        (["-cc.custom_ops+", "none,+gelu", "-cc.custom_ops+=b"],
         {"custom_ops": ["none", "+gelu", "b"]}),
        (["-cc", '{"mode": 3}'], {"mode": 3}),
        (["-cc.path=a.b=c"], {"path": "a.b=c"}),
    ],
)  # fmt: skip
def test_parts_become_one_value(words: list[str], value: object) -> None:
    assert engine_args(parser().parse(words)).compilation_config == value


@pytest.mark.parametrize("words", [["-O2"], ["-O", "2"], ["-O=2"], ["--optimization-level", "2"]])
def test_the_optimization_level(words: list[str]) -> None:
    assert engine_args(parser().parse(words)).optimization_level == 2


def test_the_parts_of_own_arguments() -> None:
    args = engine_args(parser().parse(["--hf-overrides.rope_scaling.factor", "2.5"]))
    assert args.hf_overrides == {"rope_scaling": {"factor": 2.5}}
    args = engine_args(parser().parse(["--structured-outputs-config.backend", "auto"]))
    assert args.structured_outputs_config == {"backend": "auto"}


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--seed.x", "1"], "--seed must be an option with a JSON"),
        (["--nonsense.x", "1"], "--nonsense must be an option with a JSON"),
        (["-cc.mode"], "expected a value"),
        (["-cc.mode=1", "-cc.mode.x=2"], "mode already has a value"),
        (["-cc.mode=1", "-cc", "{}"], "whole and in parts"),
    ],
)
def test_what_cannot_be_joined_is_told(
    capsys: pytest.CaptureFixture[str], words: list[str], part: str
) -> None:
    assert part in told(capsys, *words)


def test_the_last_of_equal_parts_counts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING"):
        words = ["--hf-overrides.a.b=false", "--hf-overrides.a.b", "2", "--hf-overrides.c+=x,y"]
        assert engine_args(parser().parse(words)).hf_overrides == {"a": {"b": 2}, "c": ["x", "y"]}
    assert [record.getMessage() for record in caplog.records] == [
        "Found duplicate keys: --hf-overrides.a.b; the last value of each counts"
    ]


def test_options_that_are_given_again_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING"):
        words = ["--seed", "1", "--seed=2", "-O1", "-cc.mode=2", "-cc.mode=3", "-O3"]
        assert engine_args(parser().parse(words)).seed == 2
        parser().parse(["--enforce-eager", "--served-model-name", "a", "b"])
    assert [record.getMessage() for record in caplog.records] == [
        "Found duplicate keys: -cc.mode, --seed, --optimization-level; the last value of each "
        "counts"
    ]


def test_points_elsewhere_are_no_parts() -> None:
    args = engine_args(parser().parse(["a.b/c.d", "--download-dir=/x.y", "--tokenizer", "t.o"]))
    assert (args.model, args.download_dir, args.tokenizer) == ("a.b/c.d", "/x.y", "t.o")


@pytest.mark.parametrize(("text", "value"), [("auto", -1), ("-1", -1), ("1k", 1000), ("1K", 1024)])
def test_the_context_length(text: str, value: int) -> None:
    assert engine_args(parser().parse(["--max-model-len", text])).max_model_len == value


def test_none_is_a_value_of_what_may_be_left_out() -> None:
    args = engine_args(parser().parse(["--quantization", "None", "--max-num-seqs", "None"]))
    assert (args.quantization, args.max_num_seqs) == (None, None)


def test_help_has_what_works_and_says_how_to_see_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = told(capsys, "--help")
    assert "--max-model-len" in text
    assert "CacheConfig (8)" in text
    assert "--tensor-parallel-size" not in text
    assert "--block-size" not in text
    assert "--help-all" in text
    assert "--tensor-parallel-size" in told(capsys, "--help-all")
    assert told(capsys, "--help-all") == told(capsys, "--help=all")


def test_help_for_a_group_or_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    group = told(capsys, "--help=cacheconfig")
    assert "--block-size" in group
    assert "--max-num-seqs" not in group
    word = told(capsys, "--help=data_parallel_backend")
    assert "Not supported: this version computes on one machine" in " ".join(word.split())
    assert "--max-num-seqs" in told(capsys, "--help=num-seqs")
    assert "SchedulerConfig" in told(capsys, "--help=zzzz")
