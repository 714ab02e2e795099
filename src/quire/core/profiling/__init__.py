"""Profiling of an engine's steps: `EngineProfiler` and the trace that it records."""
