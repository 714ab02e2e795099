"""From the engine's outputs to reply bodies and stream events."""
