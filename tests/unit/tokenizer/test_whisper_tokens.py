"""`WhisperTokens`: from the tokenizer and generation_config.json, or from the model's sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from whisper_files import Model, random_model, write_hf

from quire.config.whisper.special_tokens import LANGUAGES, tokenizer_files
from quire.errors import CheckpointError
from quire.tokenizer import Tokenizer
from quire.tokenizer.whisper_tokens import WhisperTokens, read_whisper_tokens, whisper_tokens

_BASE = {"d_model": 512, "decoder_layers": 6, "decoder_attention_heads": 8}


@pytest.fixture(scope="module")
def model() -> Model:
    return random_model()


@pytest.fixture(scope="module")
def directory(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("hf"), model)


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_directory(directory)


def _words(count: int) -> list[bytes]:
    """A vocabulary of as many words: bytes, a space with a byte, two bytes."""
    ones = [bytes([one]) for one in range(256)]
    return [*ones, *(a + b for a in ones for b in ones)][:count]


def _made(directory: Path, num_words: int, vocab_size: int, **generation: Any) -> WhisperTokens:
    """The tokens of a model with the width of `base`."""
    for name, text in tokenizer_files(_words(num_words), vocab_size, directory).items():
        (directory / name).write_text(text)
    (directory / "generation_config.json").write_text(json.dumps(generation))
    config = {**_BASE, "vocab_size": vocab_size}
    return read_whisper_tokens(directory, Tokenizer.from_directory(directory), config)


def test_ids_follow_from_the_vocabulary(tmp_path: Path) -> None:
    found = _made(tmp_path, 50257, 51865)
    assert (found.eot, found.sot, found.translate, found.transcribe) == (50257, 50258, 50358, 50359)
    assert (found.sot_prev, found.no_speech, found.no_timestamps) == (50361, 50362, 50363)
    assert (found.first_timestamp, found.max_initial_timestamp_index) == (50364, 50)
    assert found.is_multilingual
    assert list(found.languages) == list(LANGUAGES[:99])
    assert (found.languages["en"], found.languages["su"]) == (50259, 50357)
    always = {50258, 50358, 50359, 50360, 50361, 50362}
    assert always < set(found.suppress)
    assert found.begin_suppress == (ord(" "), 50257)
    assert found.alignment_heads[:2] == ((3, 1), (4, 2))


def test_the_hundredth_language(tmp_path: Path) -> None:
    found = _made(tmp_path, 50257, 51866)
    assert (found.languages["yue"], found.transcribe, found.first_timestamp) == (
        50358,
        50360,
        50365,
    )
    assert len(found.languages) == 100


def test_a_model_of_english_alone(tmp_path: Path) -> None:
    found = _made(tmp_path, 50256, 51864)
    assert not found.is_multilingual
    assert found.languages == {}
    assert (found.eot, found.sot, found.first_timestamp) == (50256, 50257, 50363)
    assert found.alignment_heads == ((3, 3), (4, 7), (5, 1), (5, 5), (5, 7))


def _heads(tokenizer: Tokenizer, **config: int) -> tuple[tuple[int, int], ...]:
    sizes = {"decoder_attention_heads": 20, "vocab_size": 51865, **config}
    return whisper_tokens(tokenizer, sizes, {}, "f").alignment_heads


def test_heads_by_the_size_of_a_model(tokenizer: Tokenizer) -> None:
    large = _heads(tokenizer, d_model=1280, decoder_layers=32)
    assert (len(large), large[0]) == (23, (10, 12))
    newer = _heads(tokenizer, d_model=1280, decoder_layers=32, vocab_size=51866)
    assert (len(newer), newer[0]) == (10, (7, 0))
    turbo = _heads(tokenizer, d_model=1280, decoder_layers=4, vocab_size=51866)
    assert turbo == ((2, 4), (2, 11), (3, 3), (3, 6), (3, 11), (3, 14))
    distilled = _heads(tokenizer, d_model=1280, decoder_layers=2, decoder_attention_heads=3)
    assert distilled == ((1, 0), (1, 1), (1, 2))
    other = _heads(tokenizer, d_model=512, decoder_layers=6, decoder_attention_heads=2)
    assert other == ((3, 0), (3, 1), (4, 0), (4, 1), (5, 0), (5, 1))


def test_the_file_says_otherwise(tmp_path: Path) -> None:
    given = {
        "suppress_tokens": [], "begin_suppress_tokens": [7], "alignment_heads": [[5, 7]],
        "lang_to_id": {"<|de|>": 50261}, "task_to_id": {"transcribe": 8}, "prev_sot_token_id": 9,
        "no_timestamps_token_id": 50000, "max_initial_timestamp_index": 1,
    }  # fmt: skip
    found = _made(tmp_path, 50257, 51865, **given, forced_decoder_ids=[[1, None], [2, 50359]])
    assert (found.suppress, found.begin_suppress) == ((), (7,))
    assert found.alignment_heads == ((5, 7),)
    assert found.languages == {"de": 50261}
    assert (found.transcribe, found.translate, found.sot_prev) == (8, 50358, 9)
    assert (found.no_timestamps, found.first_timestamp) == (50000, 50001)
    assert found.max_initial_timestamp_index == 1
    english = _made(tmp_path, 50257, 51865, is_multilingual=False, suppress_tokens=[-1])
    assert not english.is_multilingual
    assert len(english.suppress) > 6


def test_heads_of_the_model_from_which_another_was_made(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    config = {**_BASE, "decoder_layers": 2, "vocab_size": 51865}
    found = whisper_tokens(tokenizer, config, {"alignment_heads": [[7, 0], [10, 17]]}, "file")
    assert found.alignment_heads == tuple((1, head) for head in range(8))
    assert "file: alignment_heads are not all in the 2 layers" in caplog.text


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("suppress_tokens", [51865], "a list of token ids below 51865"),
        ("suppress_tokens", "-1", "a list of token ids"),
        ("begin_suppress_tokens", [True], "a list of token ids"),
        ("alignment_heads", [[1]], r"a list of pairs \[layer, head\]"),
        ("alignment_heads", [[1, -1]], r"a list of pairs"),
        ("alignment_heads", {"a": 1}, r"a list of pairs"),
        ("lang_to_id", {"<|en|>": "x"}, "an object of token ids"),
        ("task_to_id", [1], "an object of token ids"),
        ("no_timestamps_token_id", -1, "a token id below 51865"),
        ("prev_sot_token_id", 10**30, "a token id below 51865"),
        ("max_initial_timestamp_index", 0.5, "a whole number from 0"),
        ("is_multilingual", 1, "true or false"),
    ],
)
def test_fields_that_cannot_be(tokenizer: Tokenizer, key: str, value: Any, words: str) -> None:
    config = {**_BASE, "vocab_size": 51865}
    with pytest.raises(CheckpointError, match=f"file: {key} must be {words}.*, such as"):
        whisper_tokens(tokenizer, config, {key: value}, "file")


def test_a_tokenizer_of_another_model(tokenizer: Tokenizer, model_dir: Path) -> None:
    config = {**_BASE, "vocab_size": 51865}
    with pytest.raises(CheckpointError, match=r"must have the token <\|"):
        whisper_tokens(Tokenizer.from_directory(model_dir), config, {}, "f")
    with pytest.raises(CheckpointError, match="an id below vocab_size, 300"):
        whisper_tokens(tokenizer, {**_BASE, "vocab_size": 300}, {}, "f")
