"""The line for each request that goes to the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import pytest

from quire.config.engine_args import AsyncEngineArgs
from quire.config.records import EngineConfig
from quire.errors import ConfigError
from quire.frontend.inputs.input_processor import InputProcessor
from quire.frontend.observers.observer import (
    RequestLog,
    RequestLogChoice,
    logger,
    request_log_choice,
)
from quire.frontend.output_processor import OutputProcessor
from quire.params import SamplingParams


@pytest.fixture
def messages(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> pytest.LogCaptureFixture:
    """What was logged, from level DEBUG."""
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    monkeypatch.setattr(logger, "propagate", False)
    caplog.set_level(logging.DEBUG, logger.name)
    return caplog


class Letters:
    """A tokenizer whose ids are letters."""

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


def test_outputs_and_prompts_are_cut(
    make_config: Callable[..., EngineConfig], messages: pytest.LogCaptureFixture
) -> None:
    log = RequestLog(RequestLogChoice(outputs=True, max_chars=2), cast(Any, Letters()))
    outputs = OutputProcessor(None, observers=[log])
    params = SamplingParams(detokenize=False)
    request = InputProcessor(make_config(), None).process("mine", [1, 2, 3], params)
    record = outputs.admit(request)
    outputs.begin(record)
    completion = record.completions[0]
    completion.token_ids += [65, 66, 67]
    completion.finish_reason = "length"
    log.on_finished(record, completion, 0.0)
    assert messages.messages[1:] == [
        "request mine: prompt None, token ids [1, 2]",
        "request mine, output 0: length after 3 tokens: 'AB'",
        "request mine, output 0: token ids [65, 66]",
    ]


def test_a_request_is_logged_once_it_is_handed_over(
    make_config: Callable[..., EngineConfig],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    monkeypatch.setattr(logger, "propagate", False)
    caplog.set_level(logging.INFO, logger.name)
    outputs = OutputProcessor(None, observers=[RequestLog(RequestLogChoice(), None)])
    request = InputProcessor(make_config(), None).process("mine", [1, 2], SamplingParams(top_k=7))
    record = outputs.admit(request)
    assert caplog.messages == []
    outputs.begin(record)
    [line] = caplog.messages
    assert line.startswith("request mine: 2 prompt tokens, ")
    assert "top_k=7" in line


def test_outputs_are_logged_with_requests_alone() -> None:
    wanted = AsyncEngineArgs(enable_log_requests=True)
    assert request_log_choice(wanted, True, 5) == RequestLogChoice(True, 5)
    assert request_log_choice(AsyncEngineArgs(), False, 5) is None
    with pytest.raises(ConfigError, match="requires enable_log_requests"):
        request_log_choice(AsyncEngineArgs(), True, None)
