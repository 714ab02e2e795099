"""The tokens at which replies of a GGUF file end, and those that are never generated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import Typed, float_tensors, gguf_bytes
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from quire.errors import CheckpointError
from quire.gguf.keys import Keys
from quire.gguf.model_config import generation_config
from quire.gguf.split import read_headers
from quire.gguf.tokenizers.files import token_texts, tokenizer_files

NORMAL, CONTROL, USER = 1, 3, 4
BYTES = sorted(ByteLevel.alphabet())


def _keys(directory: Path, added: dict[str, int], **more: Any) -> Keys:
    """A file with these tokens and their types after the bytes."""
    tokens = [*BYTES, *added]
    kinds = [NORMAL] * len(BYTES) + list(added.values())
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [Typed("i32", kind) for kind in kinds],
        "tokenizer.ggml.merges": [],
    }
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in more.items()}
    table = float_tensors({"token_embd.weight": np.zeros((len(tokens), 1), np.float32)})
    path = directory / "m.gguf"
    path.write_bytes(gguf_bytes({"general.architecture": "llama", **metadata}, table))
    return Keys(read_headers([path]))


def _ends(keys: Keys) -> list[str]:
    tokens = token_texts(keys)
    return [tokens[token_id] for token_id in generation_config(keys, tokens)["eos_token_id"]]


def _all(kind: int, *texts: str) -> dict[str, int]:
    return dict.fromkeys(texts, kind)


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        ("<|start|> <|end|> <|channel|> <|return|> <|call|> <|endoftext|>",
         {"<|return|>", "<|call|>", "<|endoftext|>"}),  # gpt-oss
        ("<|begin|> <|end|> <|flush|> <|calls|>", {"<|flush|>", "<|calls|>"}),  # Solar Open
        ("<|user|> <|end|> <|endoftext|>", {"<|end|>", "<|endoftext|>"}),  # Phi-3
        ("<eos> <turn|> <|turn> <|tool_response> <tool_response|> </s>",
         {"<eos>", "<turn|>", "<|tool_response>"}),  # Gemma 4
        ("[BOS] [EOS] [EOT] <|im_end|> [PAD]", {"[EOS]", "[EOT]", "<|im_end|>", "[PAD]"}),  # Kimi
        ("<s> </s>", {"</s>"}),
        ("<|fim_prefix|> <|fim_pad|> <|repo_name|> <|file_sep|>",
         {"<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}),  # Qwen's coders
        ("<｜end▁of▁sentence｜> [e~[ <end_of_utterance> _<EOT>",
         {"<｜end▁of▁sentence｜>", "[e~[", "<end_of_utterance>", "_<EOT>"}),
    ],
)  # fmt: skip
def test_control_tokens(texts: str, wanted: set[str], tmp_path: Path) -> None:
    assert set(_ends(_keys(tmp_path, _all(CONTROL, *texts.split())))) == wanted


@pytest.mark.parametrize("kind", [NORMAL, USER])
def test_tokens_of_another_type(kind: int, tmp_path: Path) -> None:
    """They end a reply too, and are found and left out of texts as control tokens are. `</s>` may
    be a mark of HTML."""
    keys = _keys(tmp_path, _all(kind, "<|im_end|>", "<tag>", "</s>"))
    assert _ends(keys) == ["<|im_end|>"]
    tokenizer = Tokenizer.from_str(tokenizer_files(keys)["tokenizer.json"])
    ids = tokenizer.encode("a<|im_end|>", add_special_tokens=False).ids
    assert ids[-1] == 256
    assert tokenizer.decode(ids) == "a"


def test_tokens_that_the_file_names(tmp_path: Path) -> None:
    """`eos_token_ids` is in Ollama's files."""
    keys = _keys(tmp_path, _all(NORMAL, "x1", "x2", "x3", "x4", "</s>"), eos_token_id=258,
                 eot_token_id=256, eos_token_ids=[258, 259, 260])  # fmt: skip
    assert _ends(keys) == ["x3", "x1", "x4", "</s>"]
    for name, value in {"eos_token_ids": [261], "eot_token_id": 261, "eos_token_ids ": 1}.items():
        keys = _keys(tmp_path, _all(NORMAL, "x1"), **{name.strip(): value})
        with pytest.raises(CheckpointError, match=rf"{name.strip()} is .*; it must be"):
            _ends(keys)


def test_roles_that_no_token_has(tmp_path: Path) -> None:
    """Early conversions wrote -1 for them, as 4294967295."""
    roles = ("bos", "eos", "eot", "padding", "seperator", "unknown", "mask")
    none = {f"{role}_token_id": 2**32 - 1 for role in roles} | {"eom_token_id": Typed("i32", -1)}
    keys = _keys(tmp_path, _all(CONTROL, "</s>"), **none)
    assert _ends(keys) == ["</s>"]
    config = json.loads(tokenizer_files(keys)["tokenizer_config.json"])
    assert not [name for name in config if name.endswith("_token")]
    with pytest.raises(CheckpointError, match="padding_token_id is 257; it must be an id below"):
        tokenizer_files(_keys(tmp_path, _all(CONTROL, "</s>"), padding_token_id=257))


def test_tokens_that_are_never_generated(tmp_path: Path) -> None:
    keys = _keys(tmp_path, _all(CONTROL, "<image|>"), suppress_tokens=[
        Typed("i32", one) for one in (256, -1, 257)
    ])  # fmt: skip
    assert generation_config(keys, token_texts(keys))["suppress_tokens"] == [256]
