"""Mistral's tekken.json, against tiktoken's rule: the pair with the lowest rank first."""

from __future__ import annotations

import base64
import json
import random
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from byte_pieces import PIECES

from quire.errors import CheckpointError
from quire.tokenizer import Tokenizer

WORDS = r"[A-Za-z]+|\d| ?[^\sA-Za-z\d]+|\s+"
NUM_SPECIAL = 8
SPECIALS = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]


def document(**changes: Any) -> dict[str, Any]:
    return {
        "config": {
            "pattern": WORDS,
            "default_vocab_size": NUM_SPECIAL + len(PIECES) - 10,
            "default_num_special_tokens": NUM_SPECIAL,
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(piece).decode(), "token_str": None}
            for rank, piece in enumerate(PIECES)
        ],
        "special_tokens": [
            {"rank": rank, "token_str": text, "is_control": True}
            for rank, text in enumerate(SPECIALS)
        ],
        **changes,
    }


def load(directory: Path, data: Any) -> Tokenizer:
    (directory / "tekken.json").write_text(json.dumps(data))
    return Tokenizer.from_directory(directory)


def merged(text: str) -> list[int]:
    """The ranks of a text's tokens, by the definition."""
    ranks = {piece: rank for rank, piece in enumerate(PIECES[:-10])}
    found = []
    for word in re.findall(WORDS, text):
        parts = [bytes([byte]) for byte in word.encode()]
        while True:
            pairs = [
                (ranks[left + right], place)
                for place, (left, right) in enumerate(pairwise(parts))
                if left + right in ranks
            ]
            if not pairs:
                break
            _, place = min(pairs)
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        whole = ranks.get(word.encode())
        found += [whole] if whole is not None else [ranks[part] for part in parts]
    return found


def test_texts_are_divided_as_tiktoken_does(tmp_path: Path) -> None:
    tokenizer, rng = load(tmp_path, document()), random.Random(1)
    for _ in range(300):
        text = "".join(
            rng.choice(["a", "b", "c", "é", " ", "1", "ab", "\n", "!", "日"]) for _ in range(30)
        )
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == [NUM_SPECIAL + rank for rank in merged(text)]
        assert tokenizer.decode(ids) == text


def test_special_tokens_have_the_first_ids(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, document())
    assert tokenizer.encode("a") == [1, NUM_SPECIAL + ord("a")]
    assert tokenizer.encode("[INST]a[/INST]</s>", add_special_tokens=False) == [
        3, NUM_SPECIAL + ord("a"), 4, 2,
    ]  # fmt: skip
    assert tokenizer.id_to_token(7) == "<SPECIAL_7>"
    assert tokenizer.eos_token_id == 2
    assert tokenizer.max_token_id == NUM_SPECIAL + len(PIECES) - 10 - 1
    assert tokenizer.decode([3, NUM_SPECIAL + ord("a"), 2]) == "a"


def test_a_file_that_lists_no_special_tokens_has_the_first_ones(tmp_path: Path) -> None:
    data = document(special_tokens=None)
    data["config"]["default_num_special_tokens"] = 30
    data["config"]["default_vocab_size"] = 30 + len(PIECES)
    tokenizer = load(tmp_path, data)
    assert tokenizer.encode("[TOOL_CALLS]", add_special_tokens=False) == [9]
    assert tokenizer.id_to_token(20) == "<SPECIAL_20>"


def test_a_tokenizer_json_comes_first(tmp_path: Path) -> None:
    import tokenizers

    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"x": 0}, []))
    backend.save(str(tmp_path / "tokenizer.json"))
    assert load(tmp_path, document()).encode("x") == [0]


def changed(where: str, **values: Any) -> dict[str, Any]:
    data = document()
    target = data["config"] if where == "config" else data[where][5]
    target.update(values)
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "tekken.json"),
        ({}, "config.pattern"),
        (document(config={"pattern": 3}), "config.pattern"),
        (changed("config", pattern="("), "tekken.json"),
        (changed("config", default_vocab_size=3), "default_vocab_size"),
        (changed("config", default_vocab_size=2**40), "default_vocab_size"),
        (changed("config", default_vocab_size=100), "every byte must be a token"),
        (changed("config", default_num_special_tokens=2), "default_num_special_tokens"),
        (changed("config", default_num_special_tokens=10**9), "default_num_special_tokens"),
        (document(vocab=None), "vocab must be a list"),
        (document(vocab=[1]), "vocab must be a list"),
        (document(vocab=[]), "every byte must be"),
        (changed("vocab", rank=6), "count from 0"),
        (changed("vocab", token_bytes="?"), "base64"),
        (changed("vocab", token_bytes=""), "0 bytes; 1 to"),
        (changed("vocab", token_bytes="YQ=="), "every byte must be"),
        (document(special_tokens=[{"rank": 0}]), "must have its own rank"),
        (document(special_tokens=[{"rank": 9, "token_str": "x"}]), "from 0 to 7"),
        (document(special_tokens=[{"rank": 0, "token_str": "a"}]), "written alike"),
    ],
)  # fmt: skip
def test_damaged_files_are_refused(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load(tmp_path, data)
