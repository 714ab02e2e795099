"""The commands for adapters, as `EngineCore.commands` has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from quire.core.adapters.manager import AdapterManager
from quire.errors import ConfigError


def adapter_commands(manager: AdapterManager | None) -> dict[str, Callable[..., Any]]:
    """The commands by name; without a manager, each raises ConfigError."""
    names = ("begin_load", "load_result", "remove", "ids", "pin")
    if manager is None:
        return {f"adapters_{name}": _refuse for name in names}
    return {f"adapters_{name}": partial(getattr(manager, name)) for name in names}


def _refuse(*args: Any) -> NoReturn:
    del args
    raise ConfigError("LoRA is not enabled: start the engine with enable_lora=True")
