"""GGUF files: their header, and what it says of a model's configuration and tokenizer.

`unpack` makes a model directory of a file; the tensors are `weights/gguf`'s.
"""
