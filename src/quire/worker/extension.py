"""Adds an operator's methods to the workers, for `collective_rpc`: vLLM's
`worker_extension_cls`."""

from __future__ import annotations

from importlib import import_module
from typing import TypeVar

from quire.errors import ConfigError, quoted

W = TypeVar("W")


def extended(worker: type[W], extension: str) -> type[W]:
    """The worker class with the methods of the class at an import path; "": without any.

    The path comes from the engine's own arguments: importing it runs its module. Raises ConfigError
    if it does not name a class, or if the class would replace attributes of the worker.
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
        raise ConfigError(f"worker_extension_cls={quoted(extension)} must name a class")
    taken = [one for one in vars(found) if one[:2] != "__" and hasattr(worker, one)]
    if taken:
        raise ConfigError(
            f"worker_extension_cls={quoted(extension)} would replace the worker's own "
            f"{', '.join(taken)}; choose other names for its methods"
        )
    return type(worker.__name__, (worker, found), {})
