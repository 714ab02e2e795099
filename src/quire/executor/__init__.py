"""Where workers live. `EngineCore` sees one `Executor`, however many workers there are."""

from quire.executor.base import Executor, part_of_rank
from quire.executor.uniproc import UniProcExecutor

__all__ = ["Executor", "UniProcExecutor", "part_of_rank"]
