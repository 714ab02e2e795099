"""Where chunks are kept: memory, files, Redis, object stores."""
