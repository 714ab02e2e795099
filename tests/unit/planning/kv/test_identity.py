"""What shapes the bits of K/V is in the fingerprint; names, places and times are not."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_checkpoint import write_tiny_checkpoint

from quire.backends.base import Capabilities
from quire.config.engine_args import EngineArgs
from quire.planning.facts import Facts, gather_facts
from quire.planning.kv import identity
from quire.planning.kv.identity import reread_fingerprint
from quire.planning.kv.weights_digest import weights_digest
from quire.planning.plan import build_engine_config, settle

SHARD_BYTES = 1 << 20


def fingerprint(path: Path, **given: Any) -> str:
    return build_engine_config(
        EngineArgs(str(path), **{"backend": "reference", **given})
    ).cache.fingerprint


def facts_of(model_dir: Path, **given: Any) -> Facts:
    return gather_facts(EngineArgs(str(model_dir), backend="reference", **given))


def settled(facts: Facts) -> str:
    return settle(EngineArgs(backend="reference"), "llm", facts).config.cache.fingerprint


@pytest.fixture
def copied(model_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_dir, tmp_path / "elsewhere"))


def change_config(path: Path, **values: Any) -> None:
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def flip(file: Path, offset: int) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    file.write_bytes(data)


def test_a_copy_has_the_same(model_dir: Path, copied: Path) -> None:
    first = fingerprint(model_dir)
    assert fingerprint(copied) == first
    assert fingerprint(copied, served_model_name="other", seed=5, num_threads=2) == first
    change_config(copied, _name_or_path="x", transformers_version="9", torch_dtype="float16")
    assert fingerprint(copied, dtype="bfloat16") == first
    assert fingerprint(model_dir) == first


@pytest.mark.parametrize(
    "given",
    [
        {"dtype": "float32"},
        {"quantization": "int8"},
        {"hf_overrides": {"rope_theta": 5000.0}},
        {"hf_overrides": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}},
        {"load_format": "dummy"},
        {"kv_cache_dtype": "int8"},  # other bytes in a block
        {"kv_cache_dtype": "int4"},
        {"block_size": 32},
    ],
    ids=str,
)
def test_arguments_that_shape_it(model_dir: Path, given: dict[str, Any]) -> None:
    assert fingerprint(model_dir, **given) != fingerprint(model_dir)


@pytest.mark.parametrize("of_capabilities", [{"name": "other"}, {"build": "other"}], ids=str)
def test_who_computes(model_dir: Path, of_capabilities: dict[str, str]) -> None:
    facts = facts_of(model_dir)
    capabilities = dataclasses.replace(facts.backend.capabilities, **of_capabilities)

    class Other(type(facts.backend)):  # type: ignore[misc]
        @property
        def capabilities(self) -> Capabilities:
            return capabilities

    assert settled(dataclasses.replace(facts, backend=Other())) != settled(facts)


def test_the_version_and_the_weights(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = facts_of(model_dir)
    first = settled(facts)
    assert settled(dataclasses.replace(facts, weights_digest="other")) != first
    monkeypatch.setattr(identity, "__version__", "other")
    assert settled(facts) != first


def test_the_layout_of_blocks(tmp_path: Path) -> None:
    given = {
        "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 4, "use_sliding_window": True,
        "sliding_window": 33, "layer_types": ["sliding_attention", "full_attention"] * 2,
    }  # fmt: skip
    model = write_tiny_checkpoint(tmp_path, **given)
    whole, cut = (fingerprint(model, max_model_len=length) for length in (33, 512))
    assert whole != cut


def test_each_tier_has_its_own(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quire.backends.cpu import load

    found = {fingerprint(model_dir)}
    for isa in load().available:
        monkeypatch.setenv("QUIRE_ISA", isa)
        found.add(fingerprint(model_dir, backend="cpu"))
    assert len(found) == 1 + len(load().available)


def test_one_number_in_the_middle_of_each_tensor(copied: Path) -> None:
    """Files of this size are read whole; in larger ones the pieces are those of each tensor."""
    file = copied / "model.safetensors"
    first = weights_digest(copied, "checkpoint")
    for offset in (9, file.stat().st_size // 2, file.stat().st_size - 1):
        flip(file, offset)
        assert weights_digest(copied, "checkpoint") != first, offset
        flip(file, offset)
    assert weights_digest(copied, "checkpoint") == first
    with file.open("ab") as longer:
        longer.write(b"\0")
    assert weights_digest(copied, "checkpoint") != first


def large_file(path: Path) -> list[tuple[int, int]]:
    """A sparse file of 300 tensors of 1 MiB; where they lie."""
    entries, places = {}, []
    for index in range(300):
        span = [index * SHARD_BYTES, (index + 1) * SHARD_BYTES]
        entries[f"t{index}"] = {"dtype": "U8", "shape": [SHARD_BYTES], "data_offsets": span}
        places.append((span[0], SHARD_BYTES))
    header = json.dumps(entries).encode()
    with (path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 300 * SHARD_BYTES)
    return [(8 + len(header) + offset, length) for offset, length in places]


def test_a_large_file_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = large_file(tmp_path)
    read: list[int] = []
    pread = os.pread

    def counting(descriptor: int, length: int, offset: int) -> bytes:
        read.append(length)
        return pread(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", counting)
    first = weights_digest(tmp_path, "checkpoint")
    assert sum(read) < 2 << 20
    assert len(read) < 400
    for offset, length in (places[0], places[150], places[299]):
        with (tmp_path / "model.safetensors").open("r+b") as file:
            file.seek(offset + length // 2)
            file.write(b"\1")
        assert weights_digest(tmp_path, "checkpoint") != first
        first = weights_digest(tmp_path, "checkpoint")


def test_weights_of_several_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / f"{name}.bin").write_bytes(rng.bytes(3000))
    index = {"weight_map": {"x": "a.bin", "y": "b.bin"}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    first = weights_digest(tmp_path, "checkpoint")
    flip(tmp_path / "b.bin", 100)
    second = weights_digest(tmp_path, "checkpoint")
    index["weight_map"]["x"] = "b.bin"
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert len({first, second, weights_digest(tmp_path, "checkpoint")}) == 3


@pytest.mark.parametrize(
    "contents",
    [
        b"", b"\xff" * 8, b"\xff" * 7 + b"\x7f", (2).to_bytes(8, "little") + b"{]",
        (4).to_bytes(8, "little") + b'{"a"', (20).to_bytes(8, "little") + b'{"a": {"data_offsets',
        (43).to_bytes(8, "little") + b'{"a": {"data_offsets": [5, 99999999999999]}}',
    ],
)  # fmt: skip
def test_damaged_files_have_a_digest_too(tmp_path: Path, contents: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(contents)
    assert weights_digest(tmp_path, "checkpoint") == weights_digest(tmp_path, "checkpoint")


def test_without_weights(tmp_path: Path) -> None:
    assert weights_digest(tmp_path, "checkpoint") == ""
    assert weights_digest(tmp_path, "packed") == ""


def test_packed_weights(model_dir: Path, tmp_path: Path) -> None:
    from quire.planning.quantize import quantize_model

    packed = quantize_model(EngineArgs(str(model_dir)), tmp_path / "packed").path
    assert fingerprint(packed, backend="cpu") != fingerprint(model_dir, backend="cpu")
    first = weights_digest(tmp_path / "packed", "packed")
    flip(tmp_path / "packed" / "model.quire", 5000)
    assert weights_digest(tmp_path / "packed", "packed") not in (first, "")


def test_new_weights_in_the_same_place(copied: Path) -> None:
    config = build_engine_config(EngineArgs(str(copied), backend="reference"))
    capabilities = facts_of(copied).backend.capabilities
    assert reread_fingerprint(config, capabilities) == config.cache.fingerprint
    flip(copied / "model.safetensors", (copied / "model.safetensors").stat().st_size - 2)
    assert reread_fingerprint(config, capabilities) != config.cache.fingerprint


def test_code_that_computes(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fingerprint(model_dir)
    models = tmp_path / "models"
    models.mkdir()
    monkeypatch.setattr(identity, "_PACKAGE", tmp_path)
    found = {first}
    for name, text in (("a.py", "x = 1"), ("a.py", "x = 2"), ("b.py", "x = 2"), ("a.txt", "")):
        (models / name).write_text(text)
        identity._code_digest.cache_clear()
        found.add(fingerprint(model_dir))
    identity._code_digest.cache_clear()
    assert len(found) == 4
