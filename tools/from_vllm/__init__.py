"""Writes the tables of docs/vllm_names.md from the objects that they tell of.

    python -m tools.from_vllm          (in the repository, with src in PYTHONPATH)

The text of the page is written by hand. A table stands between two comments that name it, and is
replaced as a whole; a test compares the page with what would be written.
"""
