"""Which executor runs a configuration. `EngineCore` calls this; nothing else makes executors."""

from __future__ import annotations

from quire.config.records import EngineConfig
from quire.executor.base import Executor
from quire.executor.uniproc import UniProcExecutor


def make_executor(config: EngineConfig) -> Executor:
    """The executor of a configuration, with its model loaded. Raises ConfigError, ModelError or
    BackendError."""
    return UniProcExecutor(config)
