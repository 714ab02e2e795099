"""The models of a file and of the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ollama_store import write_manifest, write_model

from quire.config.engine_args import EngineArgs
from quire.config.model_lookup.aliases import set_alias
from quire.config.model_lookup.disk.places import found_models
from quire.config.model_lookup.settings import AliasSettings
from quire.errors import ConfigError, ModelNotFoundError
from quire.server import ServerArgs
from quire.server.context import ServerContext
from quire.server.fleet.catalog import (
    CatalogEntry,
    catalog_of_one,
    catalog_of_words,
    keep_alive_seconds,
    read_catalog,
    with_found,
)


def read(path: Path, models: Any, **server: Any) -> list[CatalogEntry]:
    file = path / "models.json"
    file.write_text(json.dumps({"models": models}))
    return read_catalog(str(file), EngineArgs(max_num_seqs=7), ServerArgs(**server))


def test_a_file_names_models_with_options(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(
        "models:\n"
        "  - model: org/small:Q4_K_M\n"
        "    name: small\n"
        "    aliases: [fast, tiny]\n"
        "    preload: true\n"
        "    keep_alive: 10m\n"
        "    options: {max-model-len: 512, tool_call_parser: hermes}\n"
        "  - demo\n"
    )
    small, demo = read_catalog(
        str(tmp_path / "models.yaml"), EngineArgs(max_num_seqs=7), ServerArgs(model_ttl=60.0)
    )
    assert small.names == ("small", "fast", "tiny")
    assert (small.is_preloaded, small.keep_alive_s) == (True, 600.0)
    assert (small.engine.model, small.engine.max_model_len) == ("org/small:Q4_K_M", 512)
    assert (small.engine.max_num_seqs, small.server.tool_call_parser) == (7, "hermes")
    assert (demo.names, demo.engine.model) == (("demo",), "demo")
    assert (demo.is_preloaded, demo.keep_alive_s) == (False, 60.0)
    assert demo.server.tool_call_parser is None


def test_words_are_models_and_the_first_is_loaded() -> None:
    first, second = catalog_of_words(["a", "b"], EngineArgs(), ServerArgs())
    assert [first.names, second.names] == [("a",), ("b",)]
    assert (first.is_preloaded, second.is_preloaded) == (True, False)
    named = EngineArgs(served_model_name=["x", "y"])
    assert [one.names for one in catalog_of_words(["a", "b"], named, ServerArgs())] == [
        ("x",), ("y",)
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="one name for each of the 2 models"):
        catalog_of_words(["a", "b"], EngineArgs(served_model_name="x"), ServerArgs())


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ([], "must have the key `models`"),
        ({"a": 1}, "must have the key `models`"),
        (257 * ["demo"], "a list of 1 to 256 models"),
        ([{"name": "a"}], "must be `model: PATH`"),
        ([7], "must be `model: PATH`"),
        ([None], "must be `model: PATH`"),
        ([[12 * [12 * [12 * ["demo"]]]]], "must be `model: PATH`"),
        ([{"model": ""}], "must be `model: PATH`"),
        ([{"model": 7}], "7: name must be a printable text"),
        ([{"model": 7, "name": "a"}], "a: model must be a text, got 7"),
        ([{"model": "x\0y", "name": "a"}], "a: model must be a text of valid Unicode without NUL"),
        ([{"model": "a", "preloaded": True}], "did you mean preload"),
        ([{"model": "a", "k" * 30_000: True}], "unknown key 'kkk"),
        ([{"model": "a", "name": 0}], "'a': name must be a printable text"),
        ([{"model": "a", "name": "b\n"}], "'a': name must be a printable text"),
        ([{"model": "a", "preload": "yes"}], "a: preload must be true or false, got 'yes'"),
        ([{"model": "a", "keep_alive": "soon"}], "a: keep_alive must be seconds"),
        ([{"model": "a", "keep_alive": 10**400}], "a: keep_alive must be seconds"),
        ([{"model": "a", "keep_alive": float("nan")}], "a: keep_alive must be seconds"),
        ([{"model": "a", "keep_alive": float("inf")}], "a: keep_alive must be seconds"),
        ([{"model": "a", "keep_alive": True}], "a: keep_alive must be seconds"),
        ([{"model": "a", "keep_alive": [1]}], "a: keep_alive must be seconds"),
        ([{"model": "a", "options": {"max_model_lenn": 5}}], "a: .*max_model_len"),
        ([{"model": "a", "options": {"max_model_len": "5"}}], "a: max_model_len must be a"),
        ([{"model": "a", "options": {"max_model_len": 10**30}}], "a: max_model_len must be a"),
        ([{"model": "a", "options": {"max_model_len": [[5]]}}], "a: max_model_len must be a"),
        ([{"model": "a", "options": {"max-num-seqs": 1, "max_num_seqs": 2}}], "a: .* given once"),
        ([{"model": "a", "options": {"model": "b"}}], "a: options must not have model"),
        ([{"model": "a", "options": {"dtype": "int3"}}], "a: dtype='int3' is not known"),
        ([{"model": "a", "options": {"tool_call_parser": 5}}], "a: tool_call_parser must be"),
        ([{"model": "a", "options": {"lora_modules": "x=y"}}], "a: lora_modules must be a list"),
        ([{"model": "a", "options": {"port": 5}}], "a: .*port"),
        ([{"model": "a", "options": [1]}], "a: options must be `option: value` lines"),
        ([{"model": "a", "options": 0}], "a: options must be `option: value` lines"),
        ([{"model": "a", "aliases": "b"}], "aliases a list of them"),
        ([{"model": "a", "aliases": 0}], "aliases a list of them"),
        ([{"model": "a"}, {"model": "b", "name": "a"}], "two models have the name 'a'"),
        ([{"model": "a"}, {"model": "b", "aliases": ["a"]}], "two models have the name 'a'"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(tmp_path: Path, models: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as found:
        read(tmp_path, models)
    assert str(found.value).startswith(f"--models {tmp_path / 'models.json'}: ")
    assert len(str(found.value)) < 1500


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--models .*nowhere.yaml"):
        read_catalog(str(tmp_path / "nowhere.yaml"), EngineArgs(), ServerArgs())
    (tmp_path / "bad.yaml").write_text("models: [")
    with pytest.raises(ConfigError, match=r"--models .*bad.yaml"):
        read_catalog(str(tmp_path / "bad.yaml"), EngineArgs(), ServerArgs())


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(0, 0.0), ("0", 0.0), (5, 5.0), (1.5, 1.5), ("10m", 600.0), ("90", 90.0), (-1, None),
     ("-1", None), ("-1m", None), ("5m0s", 300.0), ("1h30m", 5400.0), ("500ms", 0.5)],
)  # fmt: skip
def test_keep_alive_is_a_time(value: Any, seconds: float | None) -> None:
    assert keep_alive_seconds(value) == seconds


def test_an_alias_brings_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    sampling = {"temperature": 0.5, "stop": ["x"]}
    made = AliasSettings(system_prompt="Be brief.", sampling=sampling, max_model_len=256)
    set_alias("brief", "demo", made)
    [brief] = catalog_of_words(["brief"], EngineArgs(), ServerArgs())
    assert (brief.engine.model, brief.engine.max_model_len) == ("brief", 256)
    assert brief.engine.override_generation_config == sampling
    assert brief.server.system_prompt == "Be brief."
    entry = {"model": "brief", "options": {"max_model_len": 128, "system_prompt": "Be long."}}
    [own] = read(tmp_path, [entry])
    assert (own.engine.max_model_len, own.server.system_prompt) == (128, "Be long.")
    [other] = catalog_of_words(["demo"], EngineArgs(), ServerArgs())
    assert other.engine.max_model_len is None


GGUF = b"GGUF" + bytes(60)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "own"))
    (tmp_path / "models").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"models/{name}.gguf").write_bytes(GGUF + name.encode())
    return tmp_path / "models"


def test_a_folder_adds_its_models(folder: Path) -> None:
    server = ServerArgs(models_dir=(str(folder),), model_ttl=60.0)
    found = found_models(server.models_dir)
    one, two = with_found([], found, EngineArgs(max_num_seqs=7), server)
    assert [one.names, two.names] == [("a",), ("b",)]
    assert (one.engine.model, one.engine.max_num_seqs) == (str(folder / "a.gguf"), 7)
    assert one.engine.served_model_name == ["a"]
    assert (one.is_found, one.is_preloaded, one.keep_alive_s) == (True, False, 60.0)
    named = [catalog_of_one(EngineArgs(model="b", max_model_len=64), server)]
    b, a = with_found(named, found, EngineArgs(), server)
    assert (b.names, b.engine.model) == (("b",), str(folder / "b.gguf"))
    assert (b.engine.max_model_len, b.is_preloaded, b.is_found) == (64, True, False)
    assert (a.names, a.is_found) == (("a",), True)


def test_models_of_folders_have_settings_of_their_own(folder: Path) -> None:
    params = {"temperature": 0.5, "top_k": 3, "stop": ["x"]}
    place = "registry.ollama.ai/library/c/latest"
    write_model(folder, place, GGUF, system="Be brief.", params=params)
    server = ServerArgs(models_dir=(str(folder),))
    engine = EngineArgs(override_generation_config={"top_k": 9})
    [entry] = with_found([], found_models(server.models_dir), engine, server)
    assert entry.engine.override_generation_config == {**params, "top_k": 9}
    assert entry.server.system_prompt == "Be brief."
    own = ServerArgs(models_dir=server.models_dir, system_prompt="Be long.")
    [entry] = with_found([], found_models(server.models_dir), engine, own)
    assert entry.server.system_prompt == "Be long."


def test_an_alias_may_stand_for_a_model_of_a_folder(folder: Path) -> None:
    set_alias("short", "b", AliasSettings(system_prompt="Be brief."))
    server = ServerArgs(models_dir=(str(folder),))
    named = [catalog_of_one(EngineArgs(model="short"), server)]
    short, other = with_found(named, found_models(server.models_dir), EngineArgs(), server)
    assert (short.names, short.engine.model) == (("short",), str(folder / "b.gguf"))
    assert (short.server.system_prompt, other.names) == ("Be brief.", ("a",))


def test_what_cannot_be_served_is_in_the_log(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layers = [{
        "mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'0' * 64}",
    }]  # fmt: skip
    write_manifest(folder, "registry.ollama.ai/library/gone/latest", layers)
    server = ServerArgs(models_dir=(str(folder),))
    with pytest.raises(ConfigError, match="no model in the folders of --models-dir"):
        with_found([], found_models(server.models_dir), EngineArgs(), server)
    assert "gone:latest is not served: its weights are missing" in caplog.text
    named = [catalog_of_one(EngineArgs(model="gone"), server)]
    with pytest.raises(ModelNotFoundError, match="weights are missing"):
        with_found(named, found_models(server.models_dir), EngineArgs(), server)
    with pytest.raises(ConfigError, match="--served-model-name needs a model"):
        with_found([], found_models(()), EngineArgs(served_model_name="x"), server)


def test_names_of_the_user_come_first(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = ServerArgs(models_dir=(str(folder),))
    named = [catalog_of_one(EngineArgs(model="demo", served_model_name="a"), server)]
    entries = with_found(named, found_models(server.models_dir), EngineArgs(), server)
    assert [one.names for one in entries] == [("a",), ("b",)]
    assert "a is not served: another model has this name" in caplog.text


def test_a_tag_may_be_left_out() -> None:
    context = ServerContext(ServerArgs())
    tagged, plain = context.add_model(("a:latest",)), context.add_model(("b",))
    for name, model in (("a", tagged), ("a:latest", tagged), ("b", plain), ("b:latest", plain)):
        assert context.knows(name)
        assert context.target(name).model is model
    assert not context.knows("a:1b")
