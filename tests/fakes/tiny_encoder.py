"""An encoder without weights: config.json and vocab.txt, for engines with load_format="dummy"."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "red", "green", "blue", "sky", "is", "the", "a"]


def write_encoder(directory: Path, architecture: str = "BertModel", **settings: Any) -> Path:
    """A tiny BERT, or another class with its keys."""
    config = {
        "architectures": [architecture], "model_type": "bert", "vocab_size": len(WORDS),
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 48, "max_position_embeddings": 20, "torch_dtype": "float32",
        **settings,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    return directory
