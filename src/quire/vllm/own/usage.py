"""`UsageContext`: the kind of caller in vLLM's usage statistics. Quire sends no statistics."""

from __future__ import annotations

from enum import Enum


class UsageContext(str, Enum):
    """How the engine is used. Accepted, but without effect."""

    UNKNOWN_CONTEXT = "UNKNOWN_CONTEXT"
    LLM_CLASS = "LLM_CLASS"
    API_SERVER = "API_SERVER"
    OPENAI_API_SERVER = "OPENAI_API_SERVER"
    OPENAI_BATCH_RUNNER = "OPENAI_BATCH_RUNNER"
    ENGINE_CONTEXT = "ENGINE_CONTEXT"
