"""The line for each request that goes to the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from quire.config.records import EngineConfig
from quire.frontend.input_processor import InputProcessor
from quire.frontend.observers.request_log import RequestLog, logger
from quire.frontend.output_processor import OutputProcessor
from quire.params import SamplingParams


def test_a_request_is_logged_once_it_is_handed_over(
    make_config: Callable[..., EngineConfig],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "level", logging.INFO)
    outputs = OutputProcessor(None, observers=[RequestLog()])
    request = InputProcessor(make_config(), None).process("mine", [1, 2], SamplingParams(top_k=7))
    record = outputs.admit(request)
    assert caplog.messages == []
    outputs.begin(record)
    [line] = caplog.messages
    assert line.startswith("request mine: 2 prompt tokens, ")
    assert "top_k=7" in line
