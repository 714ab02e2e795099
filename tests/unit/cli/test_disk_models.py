"""`quire list` and `quire run` with models of other programs' folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf_files import (
    as_llama_cpp_has_it,
    byte_level_metadata,
    float_tensors,
    gguf_bytes,
    model_metadata,
    random_tensors,
)
from ollama_store import write_manifest, write_model

from quire.cli import main
from quire.cli.local_conversation import LocalConversation
from quire.config.engine_args import EngineArgs
from quire.config.model_lookup.aliases import set_alias
from quire.config.model_lookup.settings import AliasSettings

LIBRARY = "registry.ollama.ai/library"
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 288,
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,
    "num_key_value_heads": 1, "head_dim": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "max_position_embeddings": 256, "tie_word_embeddings": False, "hidden_act": "silu",
    "dtype": "float32",
}  # fmt: skip


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HF_HUB_CACHE", "LLAMA_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    return tmp_path / "ollama"


@pytest.fixture(scope="module")
def weights() -> bytes:
    metadata = {**model_metadata("llama", CONFIG), **byte_level_metadata(288)}
    stored = as_llama_cpp_has_it(random_tensors(CONFIG), "llama", CONFIG)
    return gguf_bytes(metadata, float_tensors(stored))


def test_the_list_says_where_models_come_from(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(store, f"{LIBRARY}/one/latest", b"GGUF" + bytes(1020))
    write_manifest(store, f"{LIBRARY}/e\x1b[31mvil/latest", [])
    write_manifest(store, f"{LIBRARY}/bad\x1b/latest", 3)
    set_alias("short", "one:latest")
    assert main(["list"]) == 0
    shown = capsys.readouterr()
    rows = [line.split() for line in shown.out.splitlines()]
    assert rows[0] == ["NAME", "FORMAT", "SIZE", "FETCHED", "FROM", "ALIASES"]
    assert ["one:latest", "gguf", "1.0", "KiB", "now", "ollama", "short"] in rows
    assert "\x1b" not in shown.out + shown.err
    assert "bad" in shown.err
    assert main(["list", "--json"]) == 0
    [entry] = json.loads(capsys.readouterr().out)
    assert (entry["source"], entry["kind"], entry["num_bytes"]) == ("ollama", "gguf", 1024)
    assert (entry["aliases"], entry["problem"]) == (["short"], "")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/two.gguf").write_bytes(b"GGUF")
    assert main(["list", "--models-dir", str(tmp_path / "mine")]) == 0
    shown = capsys.readouterr()
    assert "one:latest" not in shown.out.replace("short -> one:latest", "")
    assert f"{tmp_path}/mine" in shown.out
    assert main(["list", "--models-dir", str(tmp_path / "nowhere")]) == 1


class StartedError(Exception):
    """Ends a run at the start of its engine."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[EngineArgs, str | None]]:
    seen: list[tuple[EngineArgs, str | None]] = []

    def note(self: LocalConversation, args: EngineArgs, prompt: str | None = None) -> None:
        del self
        seen.append((args, prompt))
        raise StartedError

    monkeypatch.setattr(LocalConversation, "__init__", note)
    return seen


@pytest.mark.parametrize("name", ["one", "one:latest", f"{LIBRARY}/one", "short"])
def test_a_run_takes_a_model_with_its_settings(
    name: str, store: Path, started: list[tuple[EngineArgs, str | None]]
) -> None:
    params = {"temperature": 0.5, "num_ctx": None}
    write_model(store, f"{LIBRARY}/one/latest", b"GGUF", system="Be brief.", params=params)
    set_alias("short", "one", AliasSettings(sampling={"temperature": 0.25, "top_k": 5}))
    with pytest.raises(StartedError):
        main(["run", name, "Hello there"])
    [(args, prompt)] = started
    assert Path(args.model or "").parent == store / "blobs"
    assert prompt == "Be brief."
    sampling = {"temperature": 0.25, "top_k": 5} if name == "short" else {"temperature": 0.5}
    assert args.override_generation_config == sampling
    assert args.served_model_name == "one:latest"
    for own in ("Own.", ""):
        with pytest.raises(StartedError):
            main(["run", name, "Hello", "--system-prompt", own])
        assert started[-1][1] == own


def test_a_run_names_what_is_wrong(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_manifest(store, f"{LIBRARY}/cloud/latest", [])
    assert main(["run", "cloud", "Hi there"]) == 1
    assert "no weights on this machine" in capsys.readouterr().err
    assert main(["run", "cloud"]) == 1
    assert "no weights on this machine" in capsys.readouterr().err
    write_model(store, f"{LIBRARY}/llama/latest", b"GGUF")
    assert main(["run", "lama:latest"]) == 1
    assert "Did you mean llama:latest?" in capsys.readouterr().err


def test_a_model_answers_from_its_folder(
    store: Path, tmp_path: Path, weights: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(store, f"{LIBRARY}/tiny/latest", weights, params={"num_predict": 3, "seed": 1})
    small = ["--max-num-seqs", "1", "--kv-cache-memory-bytes", "1MiB"]
    assert main(["run", "tiny", "hello", *small]) == 0
    assert capsys.readouterr().out.strip()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/own.gguf").write_bytes(weights)
    words = ["run", "own", "hello", "--max-tokens", "3", "--models-dir", str(tmp_path / "mine")]
    assert main([*words, *small]) == 0
    assert capsys.readouterr().out.strip()


def test_a_mistyped_name_with_a_tag_and_a_prompt_has_a_suggestion(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(store, f"{LIBRARY}/mymodel/7b", b"GGUF" + bytes(1020))
    assert main(["run", "mymodl:7b", "hello"]) != 0
    assert "Did you mean mymodel:7b?" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["tiny", "llama3.2:1b"])
def test_a_server_names_the_option_for_a_model_of_another_program(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setattr("quire.server.serving.serve", lambda *_: 7)
    write_model(store, f"{LIBRARY}/{name.replace(':', '/')}" + ("" if ":" in name else "/latest"),
                b"GGUF")  # fmt: skip
    assert main(["serve", name]) == 7
    assert f"to serve it: quire serve {name} --models-dir {store}" in caplog.text
    caplog.clear()
    assert main(["serve", "demo"]) == 7
    assert "--models-dir" not in caplog.text
