"""Quire: an LLM inference and serving engine for CPUs.

The public names are vLLM's. Each is imported when it is first used, so that `import quire` is fast.
"""

from __future__ import annotations

from importlib import import_module

from quire.version import __version__

_MODULE_OF = {
    "AsyncEngineArgs": "quire.planning.engine_args",
    "AsyncLLMEngine": "quire.frontend.online.async_llm",
    "BeamSearchParams": "quire.beam_search",
    "ClassificationOutput": "quire.outputs",
    "ClassificationRequestOutput": "quire.outputs",
    "CompletionOutput": "quire.outputs",
    "EmbeddingOutput": "quire.outputs",
    "EmbeddingRequestOutput": "quire.outputs",
    "EngineArgs": "quire.planning.engine_args",
    "LLM": "quire.llm",
    "LLMEngine": "quire.frontend.offline.llm_engine",
    "ModelRegistry": "quire.models.registry",
    "PoolingOutput": "quire.outputs",
    "PoolingParams": "quire.protocol.pooling_params",
    "PoolingRequestOutput": "quire.outputs",
    "RequestOutput": "quire.outputs",
    "ScoringOutput": "quire.outputs",
    "ScoringRequestOutput": "quire.outputs",
    "SamplingParams": "quire.params",
    "TextPrompt": "quire.inputs",
    "TokensPrompt": "quire.inputs",
}

__all__ = [
    "AsyncEngineArgs",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "LLM",
    "LLMEngine",
    "ModelRegistry",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "RequestOutput",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]

TYPE_CHECKING = False  # that of typing, whose import takes longer than all of this
if TYPE_CHECKING:
    from typing import Any

    from quire.beam_search import BeamSearchParams
    from quire.frontend.offline.llm_engine import LLMEngine
    from quire.frontend.online.async_llm import AsyncLLMEngine
    from quire.inputs import TextPrompt, TokensPrompt
    from quire.llm import LLM
    from quire.models.registry import ModelRegistry
    from quire.outputs import (
        ClassificationOutput,
        ClassificationRequestOutput,
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
        RequestOutput,
        ScoringOutput,
        ScoringRequestOutput,
    )
    from quire.params import SamplingParams
    from quire.planning.engine_args import AsyncEngineArgs, EngineArgs
    from quire.protocol.pooling_params import PoolingParams


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'quire' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
