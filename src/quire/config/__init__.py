"""The engine's configuration, resolved once into frozen records."""

from quire.config.records import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    ObservabilityConfig,
    SchedulerConfig,
)

__all__ = [
    "CacheConfig", "DeviceConfig", "EngineConfig", "ModelConfig",
    "ObservabilityConfig", "SchedulerConfig",
]  # fmt: skip
