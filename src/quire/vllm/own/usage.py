"""`UsageContext`: what vLLM's usage statistics call a caller. Quire sends no statistics."""

from __future__ import annotations

from enum import Enum


class UsageContext(str, Enum):
    """How the engine is used; accepted, and without effect."""

    UNKNOWN_CONTEXT = "UNKNOWN_CONTEXT"
    LLM_CLASS = "LLM_CLASS"
    API_SERVER = "API_SERVER"
    OPENAI_API_SERVER = "OPENAI_API_SERVER"
    OPENAI_BATCH_RUNNER = "OPENAI_BATCH_RUNNER"
    ENGINE_CONTEXT = "ENGINE_CONTEXT"
