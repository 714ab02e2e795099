"""Middleware of users (`--middleware package.module.Name`), as vLLM's server takes it."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any, cast

from starlette.middleware import Middleware

from quire.errors import ConfigError, quoted


def user_middleware(path: str) -> Middleware:
    """A class of ASGI middleware, or a coroutine function of request and next handler.

    Raises ConfigError for a path that leads to neither.
    """
    module_name, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"middleware={quoted(path)} cannot be imported: {error}; write package.module.Name"
        ) from None
    if inspect.isclass(found):
        return Middleware(cast(Any, found))
    if inspect.iscoroutinefunction(found):
        from starlette.middleware.base import BaseHTTPMiddleware

        return Middleware(BaseHTTPMiddleware, dispatch=found)
    raise ConfigError(
        f"middleware={quoted(path)} is neither a class nor a coroutine function of request and "
        "next handler"
    )
