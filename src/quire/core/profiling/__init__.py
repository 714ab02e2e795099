"""What an engine's steps spend their time on: `EngineProfiler` and the trace that it records."""
