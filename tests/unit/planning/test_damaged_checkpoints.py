"""Random damage to each file of a checkpoint: it works, or an error of our own names the file."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damage import damaged_bytes, damaged_file, damaged_json
from rendered_here import rendered_here
from safetensors.numpy import load_file, save_file
from sweeps import examples
from tiny_checkpoint import EOS, write_tiny_checkpoint

from quire.chat.template_files import read_templates
from quire.chat.templates import ChatTemplates
from quire.config.engine_args import EngineArgs
from quire.core.engine_core import EngineCore
from quire.errors import BackendError, QuireError, RequestError
from quire.planning.plan import plan_engine
from quire.planning.quantize import quantize_model
from quire.tokenizer import for_model as tokenizer_loader
from quire.tokenizer.for_model import load_tokenizer

FEW, MANY = examples(100), 3000
MOST_S = 20.0
"""Processor time for one file. The first unknown architecture imports torch, which takes 7 s."""
TEXTS = ["Hello the world", "", "é 中文 😀\u200d", "\0\x01▁ 12 <|end|> a</w>", "a" * 300]
INDEX = "model.safetensors.index.json"

Damage = Callable[[random.Random, bytes], bytes]
Json = dict[str, Any]


def change(path: Path, **values: Any) -> None:
    old = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**old, **values}))


def generation(base: Path) -> None:
    change(
        base / "generation_config.json", eos_token_id=[256, 3], temperature=0.7, top_p=0.8,
        top_k=20, min_p=0.0, repetition_penalty=1.0, max_new_tokens=100, do_sample=True,
    )  # fmt: skip


def tokenizer_config(base: Path) -> None:
    end = {"content": EOS, "lstrip": False, "normalized": False, "special": True}
    change(
        base / "tokenizer_config.json", added_tokens_decoder={"256": end}, bos_token="<s>",
        extra_special_tokens={"a": "<q>"}, model_max_length=512, tokenizer_class="Qwen2Tokenizer",
        chat_template=[{"name": "default", "template": "{{ messages }}"}],
    )  # fmt: skip


def special_tokens(base: Path) -> None:
    end = {"content": EOS, "single_word": False, "normalized": False}
    change(base / "special_tokens_map.json", eos_token=end, additional_special_tokens=["<x>"])
    change(base / "added_tokens.json", **{EOS: 256, "<y>": 259})


def vocab_and_merges(base: Path) -> None:
    (base / "tokenizer.json").unlink()
    letters = {chr(97 + place): place for place in range(26)}
    change(base / "vocab.json", **letters, th=26, the=27, **{EOS: 256})
    (base / "merges.txt").write_text("#version: 0.2\nt h\nth e\n")
    change(base / "tokenizer_config.json", add_bos_token=True, bos_token="<s>", add_eos_token=True)


def shards(base: Path) -> None:
    tensors = load_file(base / "model.safetensors")
    (base / "model.safetensors").unlink()
    owners = {}
    for part in range(2):
        file = f"model-0000{part + 1}-of-00002.safetensors"
        names = sorted(tensors)[part::2]
        save_file({name: tensors[name] for name in names}, base / file)
        owners.update(dict.fromkeys(names, file))
    change(base / INDEX, metadata={"total_size": 1}, weight_map=owners)


def nothing(_: Path) -> None:
    """The file is there already."""


def in_header(rng: random.Random, data: bytes) -> bytes:
    """Of safetensors: the header, mostly."""
    end = 8 + int.from_bytes(data[:8], "little")
    kind = rng.random()
    if kind < 0.2:
        return damaged_bytes(rng, data)
    if kind < 0.4:
        return damaged_bytes(rng, data[:end]) + data[end:]
    header = json.dumps(damaged_json(rng, json.loads(data[8:end]))).encode()
    return len(header).to_bytes(8, "little") + header + data[end:]


PREFIX = struct.Struct("<8sIIQQ32s")


def in_packed_header(rng: random.Random, data: bytes) -> bytes:
    """With a checksum that fits, mostly."""
    magic, version, zero, offset, _, _ = PREFIX.unpack(data[: PREFIX.size])
    kind = rng.random()
    if kind < 0.3:
        return damaged_bytes(rng, data[:4096]) + data[4096:]
    header = damaged_bytes(rng, data[offset:])
    if kind < 0.8:
        header = json.dumps(damaged_json(rng, json.loads(data[offset:]))).encode()
    digest = hashlib.sha256(header).digest()
    prefix = PREFIX.pack(magic, version, zero, offset, len(header), digest)
    return prefix + data[PREFIX.size : offset] + header


CASES: dict[str, tuple[str, Callable[[Path], None], Damage]] = {
    "config": ("config.json", nothing, damaged_file),
    "generation": ("generation_config.json", generation, damaged_file),
    "tokenizer": ("tokenizer.json", nothing, damaged_file),
    "tokenizer config": ("tokenizer_config.json", tokenizer_config, damaged_file),
    "config of a vocabulary": ("tokenizer_config.json", vocab_and_merges, damaged_file),
    "special tokens": ("special_tokens_map.json", special_tokens, damaged_file),
    "added tokens": ("added_tokens.json", special_tokens, damaged_file),
    "vocabulary": ("vocab.json", vocab_and_merges, damaged_file),
    "merges": ("merges.txt", vocab_and_merges, damaged_bytes),
    "index": (INDEX, shards, damaged_file),
    "safetensors": ("model.safetensors", nothing, in_header),
    "packed": ("model.quire", nothing, in_packed_header),
}


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenizers are loaded here at once: a trial of each in a process would take minutes."""
    monkeypatch.setattr(tokenizer_loader, "try_out", lambda _: None)
    monkeypatch.setattr(logging.getLogger("quire"), "disabled", True)


def use(model: Path) -> None:
    """All that reads a checkpoint's files, up to the first tokens."""
    args = EngineArgs(str(model), num_gpu_blocks_override=64, num_threads=1)
    config = plan_engine(args).config
    tokenizer = load_tokenizer(config.model)
    assert tokenizer is not None
    templates = ChatTemplates(read_templates(model), tokenizer.roles)
    EngineCore(config).shutdown()
    for text in TEXTS:
        try:
            tokenizer.decode(tokenizer.encode(text))
        except RequestError:  # this text alone
            continue
    tokenizer.decode(range(min(300, tokenizer.vocab_size)))
    assert isinstance(tokenizer.eos_token_id, int | None)
    try:
        rendered_here(templates)
    except RequestError:
        return


def check(case: str, directory: Path, seed: int, count: int) -> None:
    name, prepare, damage = CASES[case]
    base = write_tiny_checkpoint(directory / "base")
    prepare(base)
    if case == "packed":
        try:
            base = quantize_model(EngineArgs(str(base)), directory / "packed").path
        except BackendError as error:
            pytest.skip(f"the native library is not built here: {error}")
    model = Path(shutil.copytree(base, directory / "model"))
    whole = (base / name).read_bytes()
    use(model)
    rng = random.Random(seed)
    for number in range(count):
        (model / name).write_bytes(damage(rng, whole))
        begin = time.process_time()
        try:
            use(model)
        except QuireError as error:
            message = str(error).replace(str(directory), "")
            assert name in message, f"{case}, seed {seed}, number {number}"
            assert len(message) < 5000
        except Exception as error:
            raise AssertionError(f"{case}, seed {seed}, number {number}") from error
        assert time.process_time() - begin < MOST_S


@pytest.mark.sweep(4)
@pytest.mark.parametrize("case", CASES)
def test_a_damaged_file(tmp_path: Path, case: str) -> None:
    check(case, tmp_path, seed=0, count=FEW)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("case", CASES)
def test_many_damaged_files(tmp_path: Path, case: str) -> None:
    check(case, tmp_path, seed=time.time_ns(), count=MANY)
