"""Log-probabilities of a reply: the chosen token first; characters that several tokens spell."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.outputs import CompletionOutput, FlatLogprobs
from quire.server.generation.logprobs import CompletionLists, LogprobsWriter, prompt_logprobs
from quire.server.json_pieces import encoded
from quire.tokenizer import Tokenizer

from .conftest import Harness

TEXT = "a😀é\n你b"
BYTES = [list(bytes([byte])) for byte in TEXT.encode()]
SHOWN = ["a", "", "", "", "😀", "", "é", "\n", "", "", "你", "b"]
"""The text of each byte."""


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Any) -> Tokenizer:
    return Tokenizer.from_directory(tiny_model)


def output_of(tokenizer: Tokenizer, ids: list[int], others: list[int]) -> CompletionOutput:
    """A completion whose tokens have a log-probability of -2, behind each of the others."""
    positions = FlatLogprobs(tokenizer.text_after)
    for token_id in ids:
        best = [each for each in others if each != token_id]
        count = 1 + len(best)
        positions.append_fast(
            [token_id, *best], [-2.0, *(-0.5 - place for place in range(len(best)))],
            [count, *range(1, count)],
        )  # fmt: skip
    return CompletionOutput(0, "", ids, -2.0, positions)


def written(value: Any) -> Any:
    return json.loads(b"".join(encoded(value)))


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_a_character_has_its_text_with_its_last_token(tokenizer: Tokenizer, size: int) -> None:
    """Whole, or as deltas of `size` tokens, which end within characters."""
    ids, others = tokenizer.encode(TEXT), tokenizer.encode("xé")
    whole = output_of(tokenizer, ids, others)
    text = LogprobsWriter(tokenizer, 2, False)
    chat = LogprobsWriter(tokenizer, 2, False)
    tokens, offsets, entries = [], [], []
    assert isinstance(whole.logprobs, FlatLogprobs)
    for begin in range(0, len(ids), size):
        span = slice(begin, begin + size)
        part = CompletionOutput(0, "", ids[span], -2.0, whole.logprobs[span])
        lists = written(text.completion(0, part))
        tokens += lists["tokens"]
        offsets += lists["text_offset"]
        entries += written(chat.chat(part))["content"]
        decoded = [next(iter(each.values())).decoded_token for each in part.logprobs or () if each]
        assert decoded == SHOWN[span]
    assert tokens == SHOWN
    assert offsets == [len("".join(SHOWN[:place])) for place in range(len(SHOWN))]
    assert [entry["token"] for entry in entries] == SHOWN
    assert [entry["bytes"] for entry in entries] == BYTES
    assert [entry["token"] for entry in entries[0]["top_logprobs"]] == ["a", "x"]


def test_the_chosen_token_comes_first(tokenizer: Tokenizer) -> None:
    ids, others = tokenizer.encode("ab"), tokenizer.encode("bcd")
    output = output_of(tokenizer, ids, others)
    expected = {
        0: [{"a": -2.0}, {"b": -2.0}],
        1: [{"a": -2.0, "b": -0.5}, {"b": -2.0, "c": -0.5}],
        3: [{"a": -2.0, "b": -0.5, "c": -1.5, "d": -2.5}, {"b": -2.0, "c": -0.5, "d": -1.5}],
        -1: [{"a": -2.0, "b": -0.5, "c": -1.5, "d": -2.5}, {"b": -2.0, "c": -0.5, "d": -1.5}],
    }
    for num_top, best in expected.items():
        lists = written(LogprobsWriter(tokenizer, num_top, False).completion(0, output))
        assert lists["top_logprobs"] == best
        assert [list(each) for each in lists["top_logprobs"]] == [list(each) for each in best]
        assert lists["token_logprobs"] == [-2.0, -2.0]
        content = written(LogprobsWriter(tokenizer, num_top, False).chat(output))
        shown = [entry["token"] for entry in content["content"][0]["top_logprobs"]]
        assert shown == list("abcd"[: num_top if num_top >= 0 else 4])


def test_of_equal_texts_the_first_is_shown(tokenizer: Tokenizer) -> None:
    """Pieces of characters are all empty until they are whole."""
    ids = tokenizer.encode("😀")
    output = output_of(tokenizer, ids[:1], ids[1:])
    writer = LogprobsWriter(tokenizer, 4, False)
    assert written(writer.completion(0, output))["top_logprobs"] == [{"": -2.0}]


def test_an_echoed_prompt_is_split_in_the_same_way(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    positions = FlatLogprobs(tokenizer.text_after)
    positions.append_fast((), (), ())
    for token_id in ids[1:]:
        positions.append_fast([token_id], [-1.0], [1])
    lists = CompletionLists()
    LogprobsWriter(tokenizer, 0, False).add_tokens(lists, ids, positions)
    found = written(lists.as_field())
    assert found["tokens"] == SHOWN
    assert found["top_logprobs"] == [None, *({shown: -1.0} for shown in SHOWN[1:])]
    assert found["token_logprobs"] == [None, *[-1.0] * (len(ids) - 1)]


def test_zero_logprobs_are_those_of_the_chosen_tokens(harness: Harness) -> None:
    body = {"prompt": "A", "max_tokens": 2, "logprobs": 0}
    logprobs = harness.post("/v1/completions", body).json()["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"B": 0.0}, {"C": 0.0}]
    echoed = harness.post("/v1/completions", {**body, "echo": True}).json()
    best = echoed["choices"][0]["logprobs"]["top_logprobs"]
    assert best == [None, {"B": 0.0}, {"C": 0.0}]


def test_token_ids_are_echoed_with_their_special_tokens(harness: Harness) -> None:
    tokens = harness.post("/tokenize", {"prompt": "<|im_start|>A<|im_end|>\n"}).json()["tokens"]
    body = {"prompt": tokens, "max_tokens": 1, "echo": True}
    reply = harness.post("/v1/completions", body).json()
    assert reply["choices"][0]["text"].startswith("<|im_start|>A<|im_end|>\n")


def test_infinities_become_numbers() -> None:
    """Plus infinity too, which a processed logit may be."""
    positions = FlatLogprobs()
    infinite = [float("inf"), float("-inf"), -1.5, float("nan")]
    positions.append_fast([1, 2, 3, 4], infinite, [1, 2, 3, 4])
    output = CompletionOutput(0, "", [1], 0.0, positions)
    shown = [3.4028234663852886e38, -9999, -1.5, -9999]
    lists = written(LogprobsWriter(None, -1, False).completion(0, output))
    assert [*lists["top_logprobs"][0].values()] == shown
    assert lists["token_logprobs"] == shown[:1]
    [entry] = written(LogprobsWriter(None, -1, False).chat(output))["content"]
    assert [entry["logprob"], *(one["logprob"] for one in entry["top_logprobs"])] == [
        shown[0], *shown,
    ]  # fmt: skip
    [prompt] = written({"of": prompt_logprobs(positions).as_field()})["of"]
    assert [one["logprob"] for one in prompt.values()] == shown
