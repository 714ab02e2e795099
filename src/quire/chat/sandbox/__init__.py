"""The sandbox of templates: the functions that they may call, and their limits."""
