"""The stages in which requests wait for their adapters, and the commands for adapters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, NoReturn

from quire.config.records import EngineConfig
from quire.core.adapters.kinds import lora_kind, prompt_kind
from quire.core.adapters.manager import AdapterManager
from quire.errors import ConfigError
from quire.executor.base import Executor
from quire.scheduler.queue import level_of

_NAMES = ("begin_load", "load_result", "withdraw_load", "remove", "ids", "pin")


class AdapterStages(NamedTuple):
    """The stages by kind of adapter; None: the engine has no such adapters."""

    lora: AdapterManager | None
    prompt: AdapterManager | None

    @classmethod
    def of(cls, config: EngineConfig, executor: Executor) -> AdapterStages:
        """The stages of an engine."""
        lora = prompt = None
        level = partial(level_of, config.scheduler.policy)
        if config.lora is not None:
            lora = AdapterManager(lora_kind(executor), config.lora.limits, level)
        if config.prompt_adapters is not None:
            limits = config.prompt_adapters.limits
            prompt = AdapterManager(prompt_kind(executor), limits, level)
        return cls(lora, prompt)


def adapter_commands(
    stages: AdapterStages, check_weights: Callable[[], None]
) -> dict[str, Callable[..., Any]]:
    """The commands by name. Those of adapters that the engine does not have raise ConfigError.
    `check_weights`: raises ConfigError if LoRA adapters cannot be loaded now."""
    commands = {
        **_commands("adapters", stages.lora, "LoRA is not enabled: use enable_lora=True"),
        **_commands(
            "prompt_adapters",
            stages.prompt,
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
