"""What a token is drawn from, through the engine, against the formula written a second time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sampling_formula import History, processed
from tokenizers import Tokenizer

from quire.llm import LLM
from quire.outputs import Logprob
from quire.params import SamplingParams

VOCAB, EOS = 288, 256
NUM_TOKENS = 6
LETTERS = "abcdef"
WORDS = ["a", "bc", "cab", "dd", "ede"]
RANDOM = np.random.default_rng(41)
PROMPTS = [RANDOM.integers(0, 256, length).tolist() for length in (3, 17, 40)]


@pytest.fixture(scope="module")
def engines(model_dir: Path, backend: str) -> Iterator[dict[str, LLM]]:
    """One that reports raw logits, and one that reports processed ones."""
    made = {
        mode: LLM(
            str(model_dir), backend=backend, logprobs_mode=mode, max_logprobs=-1,
            dtype="float32", max_model_len=64, num_threads=1, num_gpu_blocks_override=256,
        )
        for mode in ("raw_logits", "processed_logits")
    }  # fmt: skip
    yield made
    for llm in made.values():
        llm.close()


def ids_of(model_dir: Path, texts: list[str]) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


FIELDS: dict[str, list[Any]] = {
    "temperature": [0, 0.01, 0.4, 1.3, 2],
    "top_k": [0, 1, 2, 7, 100, VOCAB, 10**9],
    "top_p": [1e-6, 0.3, 0.9, 0.9999, 1],
    "min_p": [0, 1e-3, 0.2, 1],
    "repetition_penalty": [1e-3, 0.7, 1, 1.4, 1e3],
    "frequency_penalty": [-2, 0, 0.3, 2],
    "presence_penalty": [-2, 0, 0.3, 2],
    "logit_bias": [None, {9: -100, 10: 100}, {5: 1.5, 70: -2.0}],
    "min_tokens": [0, 3],
    "stop_token_ids": [[], [3, 200]],
    "bad_words": [None, WORDS],
    "allowed_token_ids": [None, LETTERS, [*range(90)]],
}


def drawn(random: np.random.Generator, letters: list[int]) -> dict[str, Any]:
    """Some fields at random; the others neutral."""
    given = {
        name: values[random.integers(len(values))]
        for name, values in FIELDS.items()
        if random.random() < 0.5
    }
    if given.get("allowed_token_ids") == LETTERS:
        given["allowed_token_ids"] = letters
    return given


def each_field_once(letters: list[int]) -> list[dict[str, Any]]:
    found = [{name: value} for name, values in FIELDS.items() for value in values]
    return [one if one != {"allowed_token_ids": LETTERS} else
            {"allowed_token_ids": letters, "bad_words": WORDS} for one in found]  # fmt: skip


def row_of(entries: dict[int, Logprob]) -> np.ndarray:
    return np.array([entries[token_id].logprob for token_id in range(VOCAB)])


@pytest.mark.sweep(1)
def test_every_field_and_random_combinations(engines: dict[str, LLM], model_dir: Path) -> None:
    letters = [ids[0] for ids in ids_of(model_dir, list(LETTERS))]
    random = np.random.default_rng(5)
    changes = each_field_once(letters) + [drawn(random, letters) for _ in range(80)]
    params = [
        SamplingParams(**{"seed": seed, "max_tokens": NUM_TOKENS, "logprobs": -1, **change})
        for seed, change in enumerate(changes)
    ]
    inputs: Any = [{"prompt_token_ids": PROMPTS[index % 3]} for index in range(len(params))]
    raw = engines["raw_logits"].generate(inputs, params, use_tqdm=False)
    found = engines["processed_logits"].generate(inputs, params, use_tqdm=False)
    words = ids_of(model_dir, WORDS)
    num_banned = 0
    for index, (before, after) in enumerate(zip(raw, found, strict=True)):
        [one], [other] = before.outputs, after.outputs
        assert one.token_ids == other.token_ids, "what is reported changes nothing"
        assert one.logprobs is not None
        assert other.logprobs is not None
        mine = params[index]
        for place, chosen in enumerate(one.token_ids):
            output = one.token_ids[:place]
            bad_words = words if mine.bad_words else []
            ends = [*(mine.stop_token_ids or []), EOS]
            history = History(PROMPTS[index % 3], output, bad_words, ends)
            wanted = processed(row_of(one.logprobs[place]), mine, history)  # type: ignore[arg-type]
            shown = row_of(other.logprobs[place])  # type: ignore[arg-type]
            kept = np.isfinite(wanted)
            assert np.array_equal(np.isfinite(shown), kept), (changes[index], place)
            np.testing.assert_allclose(shown[kept], wanted[kept], rtol=2e-5, atol=1e-4)
            assert kept[chosen]
            if mine.temperature == 0:
                assert chosen == int(wanted.argmax())
            num_banned += sum(output[-len(word) + 1 :] == word[:-1] for word in bad_words if output)
    assert num_banned > 5, "words were about to be said"
