"""`log_level` and `log_config_file`: how an engine's arguments configure the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.config.engine_args import EngineArgs
from quire.errors import ConfigError
from quire.log import configure
from quire.planning.environment import log_config_file, log_level


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """The loggers are as before."""
    root = logging.getLogger("quire")
    before = (root.level, list(root.handlers), root.propagate)
    yield
    level, handlers, root.propagate = before
    root.setLevel(level)
    root.handlers[:] = handlers


def test_the_level() -> None:
    configure("ERROR", None)
    assert logging.getLogger("quire").level == logging.ERROR
    configure("NOTSET", None)
    assert logging.getLogger("quire").level == logging.ERROR


@pytest.mark.parametrize("name", ["quire", "vllm"])
def test_a_file_configures_all(tmp_path: Path, name: str) -> None:
    target, file = tmp_path / "log", tmp_path / "log.json"
    handler = {"class": "logging.FileHandler", "filename": str(target)}
    loggers = {name: {"handlers": ["file"], "level": "DEBUG"}}
    file.write_text(json.dumps({"version": 1, "handlers": {"file": handler}, "loggers": loggers}))
    configure(None, str(file))
    logging.getLogger("quire.anything").debug("a line")
    for made in logging.getLogger("quire").handlers:
        made.close()
    assert target.read_text() == "a line\n"


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"version": 1, "handlers": {"a": {}}}'])
def test_a_file_that_cannot_be_used_is_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "log.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match="log_config_file"):
        configure(None, str(file))


def test_where_the_choice_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_CONFIG_PATH", "/environment")
    assert log_config_file(EngineArgs()) == "/environment"
    both = {"log_level": "DEBUG", "pylogging_config_file": "/part", "formatter": "text"}
    assert log_config_file(EngineArgs(logging_config=both)) == "/part"
    assert log_config_file(EngineArgs(log_config_file="/own", logging_config=both)) == "/own"
    assert log_level(EngineArgs(logging_config=both)) == "DEBUG"
    assert log_level(EngineArgs(log_level="ERROR", logging_config=both)) == "ERROR"
    for wrong in ({"formatter": "json"}, {"log_level": "LOUD"}):
        with pytest.raises(ConfigError, match="logging_config"):
            log_level(EngineArgs(logging_config=wrong))
