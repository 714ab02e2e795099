"""The stages in which requests wait for their adapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from quire.config.records import EngineConfig
from quire.core.adapters.kinds import AdapterKind, lora_kind, prompt_kind
from quire.core.adapters.manager import COMMANDS, AdapterManager
from quire.core.capability import Capability
from quire.errors import ConfigError
from quire.executor.base import Executor
from quire.scheduler.queue import level_of


class _NoAdapters(Capability):
    """Refuses the commands for adapters of one kind."""

    def __init__(self, kind: AdapterKind) -> None:
        self._kind = kind

    @property
    def commands(self) -> Mapping[str, Callable[..., Any]]:
        refuse = partial(_refuse, self._kind.refusal)
        return {f"{self._kind.prefix}_{name}": refuse for name in COMMANDS}


def adapter_stages(
    config: EngineConfig, executor: Executor, check_weights: Callable[[], None]
) -> list[Capability]:
    """The stages by kind of adapter. `check_weights`: raises ConfigError if LoRA adapters cannot be
    loaded now."""
    level = partial(level_of, config.scheduler.policy)
    kinds = [
        (lora_kind(executor, check_weights), config.lora),
        (prompt_kind(executor), config.prompt_adapters),
    ]
    return [
        _NoAdapters(kind) if own is None else AdapterManager(kind, own.limits, level)
        for kind, own in kinds
    ]


def _refuse(refusal: str, *args: Any) -> NoReturn:
    del args
    raise ConfigError(refusal)
