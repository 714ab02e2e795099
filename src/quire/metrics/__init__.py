"""What an engine counts about itself, and how it is shown to Prometheus."""

from quire.metrics.engine_metrics import EngineMetrics

__all__ = ["EngineMetrics"]
