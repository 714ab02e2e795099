"""The engine's configuration, resolved once into frozen records."""

from quire.config.records import (
    BackendName,
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    ObservabilityConfig,
    SchedulerConfig,
    SchedulingPolicy,
)

__all__ = [
    "BackendName", "CacheConfig", "DeviceConfig", "EngineConfig", "ModelConfig",
    "ObservabilityConfig", "SchedulerConfig", "SchedulingPolicy",
]  # fmt: skip
