"""The routes that control the engine: what their queries and bodies take, and what they answer."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from quire.server.schema.common import Count


class WorldSizeQuery(msgspec.Struct, kw_only=True):
    """Which processes count."""

    include_dp: bool = True


class WorldSize(msgspec.Struct, kw_only=True):
    """How many processes compute one step."""

    world_size: Count


class ServerInfoQuery(msgspec.Struct, kw_only=True):
    """The form of the configuration."""

    config_format: Literal["text", "json"] = "text"


class ServerInfo(msgspec.Struct, kw_only=True):
    """The engine's configuration, the environment variables that Quire may read, the machine."""

    vllm_config: Any
    """A text, or an object, as asked for. vLLM's name."""
    vllm_env: dict[str, str]
    """Variables that begin with QUIRE_ or VLLM_, without those that hold secrets."""
    system_env: dict[str, str | None]
