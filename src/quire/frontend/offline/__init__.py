"""What several threads need to share one engine without a server: turns, waiting, Ctrl+C."""
