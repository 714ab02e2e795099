"""How a token is chosen: the specification, and the sampling parameters of a batch as arrays.

`reference` is the specification in NumPy, which backends follow bit for bit. `SamplingColumns`
holds the parameters, one array for each.
"""
