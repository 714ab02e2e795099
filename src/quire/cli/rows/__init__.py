"""Files of rows in, files of rows out: what `quire generate` and `quire embed` share.

`files.py` reads and writes rows, and `work.py` computes those that are not finished. The commands
say what is computed for a row.
"""
