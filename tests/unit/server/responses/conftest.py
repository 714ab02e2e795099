"""Servers whose model says what a test wants it to say."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_core import scripted

from quire.parsers.format import ReasoningTags, ReplyFormat
from quire.parsers.tool_formats.hermes import HermesCalls

from ..conftest import Harness, MakeHarness, make_harness, tiny_model

__all__ = ["make_harness", "tiny_model"]


@pytest.fixture
def make_scripted(make_harness: MakeHarness) -> Any:
    def make(text: str, **options: Any) -> Harness:
        harness = make_harness(core=scripted(text), **options)
        harness.context.reply_format = ReplyFormat(
            ReasoningTags("<think>", "</think>"), HermesCalls()
        )
        return harness

    return make
