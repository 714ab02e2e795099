"""Formats of tokenizer files that the Rust library does not read."""
