"""Servers whose model says what a test wants it to say."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_core import scripted

from quire.parsers.format import ReplyFormat
from quire.parsers.reasoning.tags import ReasoningTags
from quire.parsers.tool_formats.json.hermes import HermesCalls


@pytest.fixture
def make_scripted(make_harness: Any) -> Any:
    def make(text: str, **options: Any) -> Any:
        harness = make_harness(core=scripted(text), **options)
        harness.context.reply_format = ReplyFormat(
            ReasoningTags("<think>", "</think>"), HermesCalls()
        )
        return harness

    return make
