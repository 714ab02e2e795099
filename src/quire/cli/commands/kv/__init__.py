"""`quire kv`: the KV store's files, each task a command."""

from __future__ import annotations

from quire.cli.app import Command

ABOUT = "Looks at the K/V that Quire keeps in files, and cleans it up; also while engines run."

COMMANDS = (
    Command("ls", "kv.ls", "What is kept: a line for each model and tenant"),
    Command("du", "kv.du", "How much is kept, in all"),
    Command("verify", "kv.verify", "Read every file and compare it with its checksum"),
    Command("prune", "kv.prune", "Remove what is old, too much, or all"),
    Command("export", "kv.export_files", "Put chunks into a tar file"),
    Command("import", "kv.import_files", "Take chunks from a tar file"),
    Command("warm", "kv.warm", "Compute prompts of a file, so that they are kept"),
    Command("bench", "kv.bench", "How fast each tier is, and when loading wins"),
)
