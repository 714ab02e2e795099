"""`EngineCore`, the loop that steps it, and where that loop runs: a thread or a process."""
