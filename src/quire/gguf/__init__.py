"""GGUF files: their header, and what it says of a model's configuration and tokenizer.

`unpack` makes a model directory of a file; `weights/gguf_store.py` reads the tensors.
"""
