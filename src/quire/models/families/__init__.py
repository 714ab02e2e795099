"""One model family per file: each turns its config.json into a program."""
