"""The benchmark's requests as classes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from vllm.benchmarks.datasets import (
    CustomDataset,
    PrefixRepetitionRandomDataset,
    RandomDataset,
    SampleRequest,
    ShareGPTDataset,
    add_dataset_parser,
    get_samples,
)
from vllm.tokenizers import get_tokenizer

from quire.errors import ConfigError


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return get_tokenizer(str(Path(__file__).parents[3] / "src" / "quire" / "demo_model"))


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_dataset_parser(parser)
    return parser.parse_args(words)


def test_random_requests(tokenizer: Any) -> None:
    wanted = {"prefix_len": 5, "input_len": 20, "output_len": 7, "range_ratio": 0.5}
    requests = RandomDataset(random_seed=1).sample(tokenizer, 6, "r", **wanted)
    assert [request.request_id for request in requests] == [f"r{n}" for n in range(6)]
    assert all(15 <= request.prompt_len <= 35 for request in requests)
    assert all(3 <= request.expected_output_len <= 11 for request in requests)
    assert requests == RandomDataset(random_seed=1).sample(tokenizer, 6, "r", **wanted)
    assert requests != RandomDataset(random_seed=2).sample(tokenizer, 6, "r", **wanted)


def test_shared_beginnings(tokenizer: Any) -> None:
    dataset = PrefixRepetitionRandomDataset(disable_shuffle=True)
    requests = dataset.sample(tokenizer, 4, prefix_len=16, suffix_len=4, num_prefixes=2)
    begins = [str(request.prompt)[:20] for request in requests]
    assert begins[0] == begins[1] != begins[2] == begins[3]


def test_files(tmp_path: Path, tokenizer: Any) -> None:
    chats = tmp_path / "chats.json"
    turns = [{"value": "What is a very small model good for?"}, {"value": "For tests, I think."}]
    chats.write_text(json.dumps([{"conversations": turns}]))
    [request] = ShareGPTDataset(str(chats)).sample(tokenizer, 1, output_len=9)
    assert (request.prompt, request.expected_output_len) == (turns[0]["value"], 9)
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"prompt": "Hello", "output_tokens": 3}\n')
    [request] = CustomDataset(str(lines)).sample(tokenizer, 1)
    assert isinstance(request.prompt, str)
    assert "<|im_start|>user\nHello" in request.prompt
    assert request.prompt_len == len(tokenizer.encode(request.prompt, add_special_tokens=False))
    [request] = CustomDataset(str(lines)).sample(tokenizer, 1, -1, skip_chat_template=True)
    assert (request.prompt, request.expected_output_len) == ("Hello", 3)


def test_requests_from_options(tmp_path: Path, tokenizer: Any) -> None:
    words = ("--num-prompts", "3", "--random-input-len", "8", "--random-output-len", "5")
    requests = get_samples(options(*words, "--seed", "2"), tokenizer)
    expected = RandomDataset(random_seed=2).sample(tokenizer, 3, input_len=8, output_len=5)
    assert requests == expected
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(f'{{"prompt": "row {n}"}}\n' for n in range(9)))
    words = ("--dataset-name", "custom", "--dataset-path", str(lines), "--skip-chat-template")
    custom = get_samples(options(*words, "--num-prompts", "4"), tokenizer)
    assert all(str(request.prompt).startswith("row ") for request in custom)
    assert len({request.prompt for request in custom}) == 4


def test_what_there_is_not(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="'spec_bench' is not supported; use custom or"):
        get_samples(argparse.Namespace(dataset_name="spec_bench"), tokenizer)
    with pytest.raises(ConfigError, match="needs --dataset-path"):
        CustomDataset().sample(tokenizer, 1)
    assert SampleRequest("a", 1).lora_request is None
