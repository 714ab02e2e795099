"""Kernels that choose tokens from logits, as `quire/sampling/reference.py` specifies it.

`tokens.py` has the passes over a row of logits, and the kernel that puts chosen tokens into the
next step; `cuts.py` has the search for the limits of top_k and top_p.
"""
