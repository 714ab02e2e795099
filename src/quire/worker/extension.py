"""Methods that an operator adds to the workers, for `collective_rpc`: vLLM's
`worker_extension_cls`."""

from __future__ import annotations

from importlib import import_module
from typing import TypeVar

from quire.errors import ConfigError, quoted

W = TypeVar("W")


def extended(worker: type[W], extension: str) -> type[W]:
    """A class of workers, with the methods of the class at this import path; empty: there is none.

    Its name comes from the engine's own arguments: loading it runs its module. Raises ConfigError
    for what is no class, and for one that would replace a part of the worker.
    """
    if not extension:
        return worker
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
    taken = [one for one in vars(found) if one[:2] != "__" and hasattr(worker, one)]
    if taken:
        raise ConfigError(
            f"worker_extension_cls={quoted(extension)} would replace the worker's own "
            f"{', '.join(taken)}; name its methods otherwise"
        )
    return type(worker.__name__, (worker, found), {})
