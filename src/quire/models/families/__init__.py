"""One model family per file: how its config.json becomes a program."""
