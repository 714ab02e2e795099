"""Where workers live. `EngineCore` sees one `Executor`, however many workers there are."""

from quire.executor.base import Executor, part_of_rank
from quire.executor.factory import make_executor
from quire.executor.uniproc import UniProcExecutor

__all__ = ["Executor", "UniProcExecutor", "make_executor", "part_of_rank"]
