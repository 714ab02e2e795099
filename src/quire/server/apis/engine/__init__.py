"""The development routes that control the engine."""
