"""K/V that outlives its request, the block pool and the process: chunks in tiers of storage.

A cache never fails a request, never changes a token, never makes anybody wait without bound, and
never grows without bound.
"""
