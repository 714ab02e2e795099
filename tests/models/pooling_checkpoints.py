"""Tiny random encoders with a tokenizer of words, and the files of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

Floats = NDArray[np.float32]


WORDS = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "blue", "sky", "sea", "is", "the",
    "##s", "query", ":", "yes", "no", "what", "a", ".",
]  # fmt: skip


TEXTS = ["the sky is blue", "what is red ?", "seas", "a green sea . the sea is blue"]


def bert(directory: Path, kind: str = "BertModel", **settings: Any) -> torch.nn.Module:
    """A random checkpoint with `vocab.txt`, without tokenizer.json."""
    torch.manual_seed(3)
    model_class = getattr(transformers, kind)
    config = model_class.config_class(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=40, max_position_embeddings=24, initializer_range=0.4, **settings,
    )  # fmt: skip
    model = model_class(config).eval()
    model.save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    return model


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


def modules(directory: Path, *kinds: str) -> None:
    """`modules.json` with a folder for each module after the first."""
    entries = [
        {"idx": index, "name": f"{index}", "path": f"{index}_{kind}" if index else "",
         "type": f"sentence_transformers.models.{kind}"}
        for index, kind in enumerate(("Transformer", *kinds))
    ]  # fmt: skip
    write(directory / "modules.json", entries)


def states(model: torch.nn.Module, directory: Path, text: str) -> Floats:
    tokenizer = transformers.BertTokenizer(str(directory / "vocab.txt"))
    with torch.no_grad():
        found = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
    return np.asarray(found.numpy())


def unit(vector: Floats) -> Floats:
    return vector / np.linalg.norm(vector)
