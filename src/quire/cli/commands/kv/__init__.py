"""`quire kv`: the KV store's files; each task is a command."""

from __future__ import annotations

from quire.cli.app import Command

ABOUT = "Inspects and cleans up the K/V that Quire keeps in files, also while engines run."

COMMANDS = (
    Command("ls", "kv.ls", "List the stored K/V: one line per model and tenant"),
    Command("du", "kv.du", "Show the total size of the stored K/V"),
    Command("verify", "kv.verify", "Read every file and compare it with its checksum"),
    Command("prune", "kv.prune", "Remove old K/V, K/V above a size, or all K/V"),
    Command("warm", "kv.warm", "Compute the prompts of a file, so that their K/V is stored"),
    Command("bench", "kv.bench", "Measure each tier, and when loading is faster than computing"),
)
