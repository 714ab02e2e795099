"""The commands for adapters, as `EngineCore.commands` has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from quire.core.adapters.gate import AdapterGate
from quire.core.adapters.manager import AdapterManager
from quire.errors import ConfigError

_NAMES = ("begin_load", "load_result", "withdraw_load", "remove", "ids", "pin")


def adapter_commands(
    gate: AdapterGate, check_weights: Callable[[], None]
) -> dict[str, Callable[..., Any]]:
    """The commands by name. Those of adapters that the engine does not have raise ConfigError.
    `check_weights`: raises ConfigError if LoRA adapters cannot be loaded now."""
    commands = {
        **_commands("adapters", gate.lora, "LoRA is not enabled: use enable_lora=True"),
        **_commands(
            "prompt_adapters",
            gate.prompt,
            "prompt adapters are not enabled: use enable_prompt_adapter=True",
        ),
    }
    begin_load = commands["adapters_begin_load"]

    def checked_begin_load(fields: dict[str, Any], ticket: str) -> None:
        check_weights()
        begin_load(fields, ticket)

    return {**commands, "adapters_begin_load": checked_begin_load}


def _commands(
    prefix: str, manager: AdapterManager | None, refusal: str
) -> dict[str, Callable[..., Any]]:
    if manager is None:
        return {f"{prefix}_{name}": partial(_refuse, refusal) for name in _NAMES}
    return {f"{prefix}_{name}": partial(getattr(manager, name)) for name in _NAMES}


def _refuse(refusal: str, *args: Any) -> NoReturn:
    del args
    raise ConfigError(refusal)
