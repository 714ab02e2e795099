"""Servers whose model says what a test wants it to say."""

from __future__ import annotations

from server.test_tool_replies import make_scripted

__all__ = ["make_scripted"]
