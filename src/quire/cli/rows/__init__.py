"""Files of rows in, files of rows out: what `quire generate` and `quire embed` share.

`reading.py` reads rows, `journal.py` keeps finished ones, `work.py` computes the others, and
`writing.py` writes the output. The commands say what is computed for a row.
"""
