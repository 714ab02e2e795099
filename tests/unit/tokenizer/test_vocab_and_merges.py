"""Tokenizers that come as vocab.json and merges.txt, against transformers' own reading of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from trained_tokenizers import TEXTS, byte_level

from quire.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")


def save_files(directory: Path, *, first: list[str], files: dict[str, Any]) -> Path:
    """vocab.json with these tokens first, merges.txt, and whatever else the model has."""
    model = json.loads(byte_level().to_str())["model"]
    special = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
    learnt = sorted(model["vocab"].keys() - special, key=model["vocab"].get)
    vocab = {piece: index for index, piece in enumerate([*first, *learnt])}
    merges = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (directory / "vocab.json").write_text(json.dumps(vocab))
    (directory / "merges.txt").write_text("\n".join(merges) + "\n")
    for name, value in files.items():
        (directory / name).write_text(json.dumps(value))
    return directory


def token(content: str) -> dict[str, Any]:
    return {
        "content": content,
        "lstrip": False,
        "normalized": True,
        "rstrip": False,
        "single_word": False,
    }


OPT_FILES = {
    "tokenizer_config.json": {
        "errors": "replace",
        "unk_token": {**token("</s>"), "__type": "AddedToken"},
        "bos_token": {**token("</s>"), "__type": "AddedToken"},
        "eos_token": {**token("</s>"), "__type": "AddedToken"},
        "pad_token": {**token("<pad>"), "__type": "AddedToken"},
        "add_prefix_space": False,
        "add_bos_token": True,
        "tokenizer_class": "GPT2Tokenizer",
    },
    "special_tokens_map.json": {
        "bos_token": token("</s>"),
        "eos_token": token("</s>"),
        "unk_token": token("</s>"),
        "pad_token": token("<pad>"),
    },
}

PROMPTS = [*TEXTS, "</s>", "Hello, my name is</s> x<pad>", "a<s>b", "  two  spaces"]


def assert_same(ours: Tokenizer, theirs: Any) -> None:
    for text in PROMPTS:
        for special in (True, False):
            ids = ours.encode(text, add_special_tokens=special)
            assert ids == theirs.encode(text, add_special_tokens=special)
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(
                ids, skip_special_tokens=skip
            )
    assert ours.bos_token_id == theirs.bos_token_id
    assert ours.eos_token_id == theirs.eos_token_id
    assert ours.pad_token_id == theirs.pad_token_id
    assert ours.vocab_size == len(theirs)


def test_opt_as_it_stands_in_the_hub(tmp_path: Path) -> None:
    save_files(tmp_path, first=["<s>", "<pad>", "</s>", "<unk>"], files=OPT_FILES)
    ours = Tokenizer.from_directory(tmp_path)
    assert_same(ours, transformers.GPT2Tokenizer.from_pretrained(tmp_path))
    assert ours.encode("Hello")[0] == 2
    assert ours.encode("Hello", add_special_tokens=False)[0] != 2
    assert ours.bos_token_id == 2
    assert ours.decode(ours.encode("Hello")) == "Hello"


@pytest.mark.parametrize("prefix", [True, False])
def test_gpt2_without_a_word_on_special_tokens(tmp_path: Path, prefix: bool) -> None:
    config = {"model_max_length": 1024, "add_prefix_space": prefix}
    save_files(tmp_path, first=["<|endoftext|>"], files={"tokenizer_config.json": config})
    ours = Tokenizer.from_directory(tmp_path)
    assert_same(ours, transformers.GPT2Tokenizer.from_pretrained(tmp_path))
    assert ours.eos_token_id == 0
    assert ours.encode("<|endoftext|>") == [0]


def test_qwen2_splits_words_its_own_way(tmp_path: Path) -> None:
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "added_tokens_decoder": {
            "0": {**token("<|endoftext|>"), "normalized": False, "special": True},
            "1": {**token("<|im_end|>"), "normalized": False, "special": True},
        },
    }
    first = ["<|endoftext|>", "<|im_end|>"]
    save_files(tmp_path, first=first, files={"tokenizer_config.json": config})
    ours = Tokenizer.from_directory(tmp_path)
    assert_same(ours, transformers.Qwen2Tokenizer.from_pretrained(tmp_path))


def test_legacy_added_tokens_file(tmp_path: Path) -> None:
    first = ["<|endoftext|>"]
    files: dict[str, Any] = {
        "special_tokens_map.json": {"eos_token": "<|endoftext|>", "pad_token": "<pad>"},
    }
    save_files(tmp_path, first=first, files=files)
    size = len(json.loads((tmp_path / "vocab.json").read_text()))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<pad>": size, "<ent>": size + 1}))
    ours = Tokenizer.from_directory(tmp_path)
    assert_same(ours, transformers.GPT2Tokenizer.from_pretrained(tmp_path))
    assert ours.token_to_id("<ent>") == size + 1
    assert ours.special_token_ids == {0, size}


def test_tokenizer_json_wins_over_vocab_and_merges(tmp_path: Path) -> None:
    save_files(tmp_path, first=["<|endoftext|>"], files={})
    byte_level(300).save(str(tmp_path / "tokenizer.json"))
    with_both = Tokenizer.from_directory(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(tmp_path / "tokenizer.json", tmp_path / "elsewhere")
    alone = Tokenizer.from_directory(tmp_path / "elsewhere")
    assert [with_both.encode(text) for text in TEXTS] == [alone.encode(text) for text in TEXTS]
