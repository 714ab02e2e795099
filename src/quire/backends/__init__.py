"""Ways to compute a model's program: `base` is the contract, with one package for each of them.

`cpu` calls the native library, `reference` interprets in NumPy, and `transformers` runs modules of
that package. The modules here are shared by backends that keep K/V in NumPy arrays.
"""
