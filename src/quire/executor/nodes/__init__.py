"""The machines of an engine: how the ranks of each are started and watched."""
