"""Where workers live. `EngineCore` sees one `Executor`, whatever is behind it."""

from quire.executor.base import Executor
from quire.executor.uniproc import UniProcExecutor

__all__ = ["Executor", "UniProcExecutor"]
