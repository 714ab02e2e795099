"""The class of the workers, and methods that an operator adds to it for `collective_rpc`: vLLM's
`worker_cls` and `worker_extension_cls`."""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeVar

from quire.config.records import EngineConfig
from quire.errors import ConfigError, quoted

W = TypeVar("W")


def worker_class(config: EngineConfig, own: type[W]) -> type[W]:
    """The class of the workers: `worker_cls`, with the methods of `worker_extension_cls`.

    `own`: the class without these options, of which `worker_cls` must be a subclass. Both paths
    come from the engine's own arguments: importing one runs its module. Raises ConfigError if one
    does not name such a class, or if an extension would replace attributes of the worker.
    """
    worker = own
    if path := config.parallel.worker_class:
        worker = _imported("worker_cls", path)
        if not issubclass(worker, own):
            raise ConfigError(
                f"worker_cls={quoted(path)} must be a subclass of quire.worker.worker.Worker"
            )
    return extended(worker, config.worker_extension)


def extended(worker: type[W], extension: str) -> type[W]:
    """The class with the methods of the class at an import path; "": without any."""
    if not extension:
        return worker
    found = _imported("worker_extension_cls", extension)
    taken = [one for one in vars(found) if one[:2] != "__" and hasattr(worker, one)]
    if taken:
        raise ConfigError(
            f"worker_extension_cls={quoted(extension)} would replace the worker's own "
            f"{', '.join(taken)}; choose other names for its methods"
        )
    return type(worker.__name__, (worker, found), {})


def _imported(argument: str, path: str) -> type[Any]:
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{argument}={quoted(path)} cannot be imported: {error}; write package.module.Class"
        ) from error
    if not isinstance(found, type):
        raise ConfigError(f"{argument}={quoted(path)} must name a class")
    return found
