"""Requests to measure with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers.decoders import Fuse
from tokenizers.models import BPE

from quire.bench.datasets import DatasetArgs, load_requests
from quire.errors import ConfigError
from quire.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Letters only: whatever ids are drawn, their text reads back as the same ids."""
    letters = "abcdefghijklmnopqrstuvwxyz .!?\"'-0123456789"
    backend = tokenizers.Tokenizer(BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.decoder = Fuse()
    return Tokenizer(backend, {})


def test_random_prompts_have_the_length_they_say(tokenizer: Tokenizer) -> None:
    args = DatasetArgs(num_prompts=30, random_input_len=50, random_output_len=9, seed=3)
    requests = load_requests(args, tokenizer)
    assert len(requests) == 30
    for request in requests:
        assert len(tokenizer.encode(request.prompt)) == request.prompt_len
        assert request.prompt_len == 50
        assert request.output_len == 9
    assert len({request.prompt for request in requests}) > 15
    assert requests == load_requests(args, tokenizer)


def test_a_range_spreads_both_lengths(tokenizer: Tokenizer) -> None:
    args = DatasetArgs(num_prompts=200, input_len=40, output_len=20, random_range_ratio=0.5)
    requests = load_requests(args, tokenizer)
    lengths = [request.output_len for request in requests]
    assert min(lengths) >= 10
    assert max(lengths) <= 30
    assert max(lengths) - min(lengths) > 10


def test_prompts_share_their_prefix(tokenizer: Tokenizer) -> None:
    args = DatasetArgs(num_prompts=6, random_input_len=10, random_prefix_len=32)
    starts = {request.prompt[:20] for request in load_requests(args, tokenizer)}
    assert len(starts) == 1
    args = DatasetArgs(
        dataset_name="prefix_repetition", num_prompts=20, prefix_repetition_num_prefixes=4,
        prefix_repetition_prefix_len=48, prefix_repetition_suffix_len=16,
    )  # fmt: skip
    requests = load_requests(args, tokenizer)
    assert len(requests) == 20
    assert len({request.prompt[:20] for request in requests}) == 4
    assert len({request.prompt for request in requests}) == 20
    with pytest.raises(ConfigError, match="prefixes"):
        load_requests(DatasetArgs(dataset_name="prefix_repetition", num_prompts=3), tokenizer)


def test_a_file_of_ones_own(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    lines = [{"prompt": "one", "output_tokens": 5}, {"prompt": "three"}]
    file.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    args: dict[str, Any] = {"dataset_name": "custom", "dataset_path": str(file)}
    found = load_requests(DatasetArgs(**args, num_prompts=5, disable_shuffle=True), tokenizer)
    assert [(r.prompt, r.prompt_len, r.output_len) for r in found[:2]] == [
        ("one", 3, 5), ("three", 5, 256),
    ]  # fmt: skip
    assert found[2] == found[0]
    assert len(found) == 5
    assert {r.output_len for r in load_requests(DatasetArgs(**args, output_len=7), tokenizer)} == {
        7
    }
    file.write_text('{"prompt": "x"}\nnot json\n')
    with pytest.raises(ConfigError, match="line 2"):
        load_requests(DatasetArgs(**args), tokenizer)


def test_sharegpt(tokenizer: Tokenizer, tmp_path: Path) -> None:
    def talk(*texts: str) -> dict[str, Any]:
        return {"conversations": [{"from": "x", "value": text} for text in texts]}

    file = tmp_path / "sharegpt.json"
    talks = [talk("hello there", "general answer"), talk("only one"), talk("ab", "too short")]
    file.write_text(json.dumps([*talks, talk("x" * 1025, "too long a prompt"), {}]))
    args: dict[str, Any] = {"dataset_name": "sharegpt", "dataset_path": str(file)}
    found = load_requests(DatasetArgs(**args, num_prompts=2), tokenizer)
    assert [(r.prompt, r.output_len) for r in found] == [("hello there", 14)] * 2
    file.write_text('{"not": "a list"}')
    with pytest.raises(ConfigError, match="ShareGPT"):
        load_requests(DatasetArgs(**args), tokenizer)


@pytest.mark.parametrize(
    "wrong",
    [{"random_range_ratio": 1.0}, {"num_prompts": 0}, {"dataset_name": "custom"},
     {"dataset_path": "x"}],
)  # fmt: skip
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DatasetArgs(**wrong)


def trace(path: Path, *lines: dict[str, Any], **options: Any) -> DatasetArgs:
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return DatasetArgs(dataset_name="timed_trace", dataset_path=str(path), **options)


def line(at: float, num_in: int, num_out: int, *hash_ids: int) -> dict[str, Any]:
    return {
        "timestamp": at, "input_length": num_in, "output_length": num_out, "hash_ids": [*hash_ids],
    }  # fmt: skip


def test_a_trace_is_replayed_with_its_times_and_common_pieces(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    args = trace(
        tmp_path / "trace.jsonl",
        line(3000, 20, 5, 1, 2, 3), line(1500, 10, 7, 1, 2), line(9000, 18, 1, 9),
        line(9500, 1, 1),
        timed_trace_chunk_hash_size=8, timed_trace_sec_multiplier=0.001, num_prompts=3,
    )  # fmt: skip
    first, second, third = load_requests(args, tokenizer)
    assert [each.due_s for each in (first, second, third)] == [0.0, 1.5, 7.5]
    assert [each.prompt_len for each in (first, second, third)] == [10, 20, 18]
    assert [len(each.prompt) for each in (first, second, third)] == [10, 20, 18]
    assert [each.output_len for each in (first, second, third)] == [7, 5, 1]
    assert second.prompt[:10] == first.prompt  # two pieces, the second cut short
    assert third.prompt[:8] != first.prompt[:8]
    assert load_requests(args, tokenizer) == [first, second, third]
    assert all(0 <= token < tokenizer.vocab_size for token in second.prompt)


def test_prompts_without_hash_ids_have_nothing_in_common(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    args = trace(tmp_path / "trace.jsonl", line(0, 30, 1), line(1, 30, 1), self_timed=False)
    first, second = load_requests(args, tokenizer)
    assert first.prompt != second.prompt
    assert first.due_s is second.due_s is None


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"timestamp": 0, "input_length": 3}, "--timed-trace-label-output-length"),
        ({"time": 0}, "'time'; name the one that has it with --timed-trace-label-timestamp"),
        (line(0, 0, 1), "from 1 to"),
        (line(0, 10**12, 1), "from 1 to"),
        (line(0, 1, 0), "at least 1 token"),
        (line(float("inf"), 1, 1), "not finite"),
        (line(0, 1, 1, "x"), "invalid literal"),  # type: ignore[arg-type]
        ([], "request 1"),
    ],
)
def test_a_trace_that_makes_no_sense_is_refused(
    tokenizer: Tokenizer, tmp_path: Path, record: Any, message: str
) -> None:
    args = trace(tmp_path / "trace.jsonl", record)
    with pytest.raises(ConfigError, match=message):
        load_requests(args, tokenizer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"self_timed": True}, "timed_trace alone"),
        ({"timed_trace_chunk_hash_size": 0}, "at least 1"),
        ({"timed_trace_sec_multiplier": 0.0}, "positive"),
        ({"dataset_name": "timed_trace"}, "needs --dataset-path"),
    ],
)
def test_options_of_traces_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DatasetArgs(**options)


def test_a_trace_keeps_its_own_times() -> None:
    from quire.bench.datasets import SampleRequest
    from quire.bench.load import TrafficArgs
    from quire.bench.serve import _due_times

    timed = [SampleRequest([1], 1, 1, due) for due in (0.0, 2.5)]
    assert _due_times(TrafficArgs(), timed, 0) == [0.0, 2.5]
    with pytest.raises(ConfigError, match="--no-self-timed"):
        _due_times(TrafficArgs(request_rate=2.0), timed, 0)
    assert _due_times(TrafficArgs(), [SampleRequest([1], 1, 1)], 0) == [0.0]
