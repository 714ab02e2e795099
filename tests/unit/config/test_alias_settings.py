"""`AliasSettings`: kept in the file of the short names, and read from Ollama's parameters."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from quire.config.model_lookup import aliases
from quire.config.model_lookup.settings import (
    AliasSettings,
    over_defaults,
    settings_of_parameters,
)
from quire.errors import ConfigError


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_an_alias_keeps_its_settings() -> None:
    made = AliasSettings(system_prompt="Be brief.", sampling={"temperature": 0.5, "stop": ["x"]})
    aliases.set_alias("brief", "org/one", made)
    aliases.set_alias("plain", "org/one")
    aliases.set_alias("copy", "brief")
    assert aliases.read_aliases() == dict.fromkeys(("brief", "plain", "copy"), "org/one")
    assert aliases.target_of("brief") == "org/one"
    assert aliases.settings_of("brief") == aliases.settings_of("copy") == made
    assert aliases.settings_of("plain") == aliases.settings_of("a/b") == AliasSettings()
    aliases.set_alias("brief", "brief", AliasSettings())
    assert json.loads(aliases.aliases_file().read_text())["brief"] == "org/one"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"model": 3}, "names and models"),
        ({}, "names and models"),
        ({"model": "m", "temperature": 1}, "unknown setting"),
        ({"model": "m", "system_prompt": ["x"]}, "system_prompt must be a text"),
        ({"model": "m", "max_model_len": "many"}, "max_model_len must be a whole number"),
        ({"model": "m", "sampling": {"stop": "x"}}, "stop must be a list"),
        ({"model": "m", "sampling": {"heat": 1}}, "unknown parameter 'heat'"),
        ({"model": "m", "sampling": []}, "sampling must be an object"),
    ],
)  # fmt: skip
def test_a_damaged_entry_is_named(entry: Any, words: str) -> None:
    aliases.aliases_file().parent.mkdir(parents=True, exist_ok=True)
    aliases.aliases_file().write_text(json.dumps({"bad": entry}))
    with pytest.raises(ConfigError, match=words):
        aliases.settings_of("bad")


def test_parameters_of_ollama_are_read() -> None:
    made, ignored = settings_of_parameters({
        "temperature": "0.5", "top_k": 20, "repeat_penalty": 1.1, "num_ctx": "4096", "seed": 7,
        "num_predict": 12, "stop": "<end>", "num_thread": 4, "mirostat": 0, "mirostat_tau": 5.0,
    }, system_prompt="Hi")  # fmt: skip
    assert ignored == ["num_thread", "mirostat_tau"]
    assert made.options() == {
        "override_generation_config": {
            "temperature": 0.5, "top_k": 20, "repetition_penalty": 1.1, "seed": 7,
            "stop": ["<end>"], "max_new_tokens": 12,
        },
        "max_model_len": 4096, "system_prompt": "Hi",
    }  # fmt: skip
    assert settings_of_parameters({"num_predict": -1})[0] == AliasSettings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"), ("temperature", True), ("temperature", float("nan")),
        ("top_k", 1.5), ("num_ctx", 0), ("num_predict", 0), ("mirostat", 2), ("tfs_z", 0.5),
        ("stop", []), ("stop", [""]), ("stop", ["x"] * 65), ("stop", 3), ("unknown", 1),
        ("seed", 10**400), ("top_p", [1]),
    ],
)  # fmt: skip
def test_a_wrong_parameter_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="max_tokens" if name == "num_predict" else name):
        settings_of_parameters({name: value})


def test_only_defaults_give_way() -> None:
    @dataclass(frozen=True)
    class Options:
        length: int | None = None
        text: str = ""
        sampling: dict[str, Any] = field(default_factory=dict)

    given = {"length": 5, "text": "a", "sampling": {"top_k": 1, "seed": 2}, "other": 1}
    assert over_defaults(Options(), given) == Options(5, "a", {"top_k": 1, "seed": 2})
    own = Options(6, "b", {"top_k": 3})
    assert over_defaults(own, given) == Options(6, "b", {"top_k": 3, "seed": 2})
