"""One module per command of `quire`."""
