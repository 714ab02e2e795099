"""Names in the directory that `gguf/unpack.py` makes of a model with an image encoder."""

from __future__ import annotations

PROJECTOR_NAME = "mmproj.gguf"
"""The link to the file with the image encoder."""
NO_IMAGES = "quire_no_images"
"""Key of config.json: why the image encoders next to the model are not used."""
CONVERTED = "quire_converted"
"""Key of Gemma 4's `vision_config`: tensors are in the order of llama.cpp's files: the matrix of
the patches reads one channel after the other, and the table of positions is [2, places, D]."""
