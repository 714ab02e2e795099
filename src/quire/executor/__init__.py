"""Executors, which run workers. `EngineCore` uses one `Executor` for any number of workers."""

from quire.executor.base import Executor, part_of_rank
from quire.executor.uniproc import UniProcExecutor

__all__ = ["Executor", "UniProcExecutor", "part_of_rank"]
