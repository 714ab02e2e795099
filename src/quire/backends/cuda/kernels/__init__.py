"""Triton kernels, one module for each kind of op. A module imports Triton alone, and only
`build.py` and tests import it. `twins/` has the same functions in NumPy, `lowering/` the launches.

The row rule: all bits of a row of a result follow from its own inputs. Sums are taken in chunks at
absolute places, in order; sizes of tiles are constants that do not follow the batch.
"""
