"""Secrets never leave the process: in no text, no configuration, no error, no log."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from quire.cli import main
from quire.config.engine_args import EngineArgs
from quire.config.kv_cache import KVStoreConfig
from quire.errors import ConfigError, QuireError
from quire.log.writer import EscapingFormatter
from quire.redacted_settings import environment, redacted
from quire.redaction import redact, redact_url
from quire.server import ServerArgs

PLANTED = "s3cr3t-Planted"
URL = f"redis://user:{PLANTED}@127.0.0.1:1/0?password={PLANTED}"


@pytest.mark.parametrize(
    "text",
    [
        f"cannot reach {URL}: refused", f"('{URL}',)", f"https://{PLANTED}@host/x",
        f"redis://:{PLANTED}@h", f"redis://u:a@{PLANTED}@h", f"redis://u:a/{PLANTED}@h",
        f"user:{PLANTED}@host:6379", f"/tokenize?api_key={PLANTED}&a=1", f"?a=1&sig={PLANTED}",
        f"https://b.s3/x?X-Amz-Credential={PLANTED}&X-Amz-Signature={PLANTED}#end",
        f"hf_token='{PLANTED}'", f"ServerArgs(port=1, api_key=('{PLANTED}',))",
        f'{{"redis_password": "{PLANTED}", "a": 1}}', f"{{'api-key': '{PLANTED}'}}",
        f"Authorization: Bearer {PLANTED}", f"{{'authorization': 'Basic {PLANTED}'}}",
        f"sent Bearer {PLANTED}", f"AWS_SECRET_ACCESS_KEY={PLANTED}", f"PASSWORD = {PLANTED}",
    ],
)  # fmt: skip
def test_a_secret_is_hidden_in_a_text(text: str) -> None:
    assert PLANTED not in redact(text)
    assert "***" in redact(text)
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8000/v1?a=1&format=json", "max_tokens=5, seed=3", "a@b.org", "12:30:01",
        "eos_token='</s>'", "api_key must be a list of texts", "token_ids=[1, 2]",
        "argument --api-key: expected at least one argument", "hf_token=None", "a = b; c: d",
        "redis://host:6379/0 and s3://bucket/prefix", "module.py:12: in f(x=1)",
    ],
)  # fmt: skip
def test_other_texts_stay(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "unit", ["://", "a", "@", "a:", "?a", "api_key=", "password", "'", "bearer "]
)
def test_its_time_is_linear(unit: str) -> None:
    """A text of 200,000 characters: with quadratic time it would take minutes."""
    began = time.process_time()
    redact(unit * (200_000 // len(unit)))
    assert time.process_time() - began < 5


def test_values_at_any_depth() -> None:
    found = redacted({"a": [{"url": URL, "password": PLANTED, "key": 7}], "api_key": [PLANTED],
                      "n": 1, "eos_token": "x", "key": None})  # fmt: skip
    assert PLANTED not in json.dumps(found)
    assert (found["n"], found["eos_token"], found["key"]) == (1, "x", None)
    assert found["a"][0]["key"] == "***"
    assert redact_url("redis://me:x@h:1/0") == "redis://me:***@h:1/0"


def test_errors_and_records_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ConfigError(f"{URL} is no tier")
    shown = [str(error), repr(error), str(QuireError(URL))]
    shown.append(repr(ServerArgs(api_key=(PLANTED,))))
    shown.append(repr(EngineArgs(model="m", hf_token=PLANTED, kv_store_url=[URL])))
    shown.append(repr(KVStoreConfig(1, 1, remotes=(URL,))))
    monkeypatch.setenv("QUIRE_X", URL)
    monkeypatch.setenv("QUIRE_X_TOKEN", PLANTED)
    shown.append(str(environment(["QUIRE_"])))
    assert PLANTED not in "".join(shown)


def test_the_log_has_none_in_tracebacks_either() -> None:
    try:
        raise OSError(f"no answer from {URL}")
    except OSError:
        record = logging.getLogger("quire").makeRecord(
            "quire", 40, __file__, 1, "failed: %s", (URL,), __import__("sys").exc_info()
        )
    text = EscapingFormatter().format(record)
    assert "Traceback" in text
    assert PLANTED not in text


def texts_of(record: type) -> Iterator[tuple[str, Any]]:
    """Each field that a text can be given to, and one with a secret."""
    hints = typing.get_type_hints(record)
    for field in dataclasses.fields(record):
        kinds = str(hints[field.name])
        if "dict" in kinds:
            yield field.name, {"url": URL, "remote_url": URL, "password": PLANTED}
        elif "list" in kinds or "tuple" in kinds:
            yield field.name, [URL]
        elif "str" in kinds or "Literal" in kinds or "int" in kinds or "bool" in kinds:
            yield field.name, URL


ENGINE_TEXTS = dict(texts_of(EngineArgs))


@pytest.mark.long
def test_no_engine_option_shows_its_secret(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the option is accepted or refused."""
    assert {"kv_store_url", "hf_token", "kv_transfer_config", "otlp_traces_endpoint"} <= set(
        ENGINE_TEXTS
    )
    for name, value in ENGINE_TEXTS.items():
        flag = "--" + name.replace("_", "-")
        words = value if isinstance(value, list) else [value]
        words = [json.dumps(word) if isinstance(word, dict) else word for word in words]
        try:
            code = main(["explain", flag, *words, "--json", "--no-timing"])
        except SystemExit as ended:
            code = int(ended.code or 0)
        assert code in (0, 1, 2), name
        out, err = capfd.readouterr()
        assert PLANTED not in out + err + caplog.text, name


def test_no_server_option_shows_its_secret() -> None:
    for name, value in texts_of(ServerArgs):
        try:
            shown = repr(ServerArgs(**{name: value}))
        except ConfigError as error:
            shown = str(error)
        assert PLANTED not in shown, name
