"""Makes the shipped Hugging Face directory of a checkpoint.

`python -m tools.demo_model.export --work DIR --out src/quire/demo_model`
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tools.demo_model.example import END, END_OF_TEXT
from tools.demo_model.model import Shape, hugging_face_state
from tools.demo_model.tokenizer import MARKERS, SPECIAL

TEMPLATE = Path(__file__).with_name("chat_template.jinja")
SAMPLING = {"do_sample": True, "temperature": 0.2, "top_p": 0.9}
SPECIAL_TOKENS = {
    "eos_token": END,
    "pad_token": END_OF_TEXT,
    "additional_special_tokens": list(SPECIAL[1:]),
}


def tokenizer_config(tokenizer: Tokenizer, context: int) -> dict[str, Any]:
    """The contents of tokenizer_config.json."""
    added = {
        str(tokenizer.token_to_id(text)): {
            "content": text, "lstrip": False, "normalized": False, "rstrip": False,
            "single_word": False, "special": text in SPECIAL,
        }
        for text in (*SPECIAL, *MARKERS)
    }  # fmt: skip
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": added,
        "bos_token": None,
        **SPECIAL_TOKENS,
        "unk_token": None,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
    }


def token_ids(tokenizer: Tokenizer) -> dict[str, Any]:
    """Which tokens end an answer and which one pads, for the two config files."""
    return {
        "eos_token_id": [tokenizer.token_to_id(END), tokenizer.token_to_id(END_OF_TEXT)],
        "pad_token_id": tokenizer.token_to_id(END_OF_TEXT),
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def export(checkpoint: Path, tokenizer_file: Path, out: Path) -> None:
    """Writes every file but the model card."""
    shape = Shape()
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    weights = torch.load(checkpoint, weights_only=True)["optimizer"]["weights"]
    state = {name: value.contiguous() for name, value in hugging_face_state(weights).items()}
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    shutil.copyfile(tokenizer_file, out / "tokenizer.json")
    shutil.copyfile(TEMPLATE, out / "chat_template.jinja")
    ids = token_ids(tokenizer)
    _write(out / "config.json", shape.to_config() | {"bos_token_id": None} | ids)
    _write(out / "generation_config.json", SAMPLING | ids)
    _write(out / "special_tokens_map.json", SPECIAL_TOKENS)
    _write(out / "tokenizer_config.json", tokenizer_config(tokenizer, shape.context))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--out", type=Path, required=True, help="the model directory")
    options = parser.parse_args()
    work: Path = options.work
    export(work / "checkpoint.pt", work / "tokenizer.json", options.out)


if __name__ == "__main__":
    main()
