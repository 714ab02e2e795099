"""Methods that an operator adds to the workers, for `collective_rpc`: vLLM's
`worker_extension_cls`."""

from __future__ import annotations

from importlib import import_module

from quire.errors import ConfigError, quoted
from quire.worker.worker import Worker


def worker_class(extension: str) -> type[Worker]:
    """`Worker`, with the methods of the class at this import path; empty: there is none.

    Its name comes from the engine's own arguments: loading it runs its module. Raises ConfigError
    for what is no class, and for one that would replace a part of `Worker`.
    """
    if not extension:
        return Worker
    module, _, name = extension.replace(":", ".").rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"worker_extension_cls={quoted(extension)} cannot be imported: {error}; write "
            "package.module.Class"
        ) from error
    if not isinstance(found, type):
        raise ConfigError(f"worker_extension_cls={quoted(extension)} is no class")
    taken = [one for one in vars(found) if one[:2] != "__" and hasattr(Worker, one)]
    if taken:
        raise ConfigError(
            f"worker_extension_cls={quoted(extension)} would replace the worker's own "
            f"{', '.join(taken)}; name its methods otherwise"
        )
    return type("Worker", (Worker, found), {})
