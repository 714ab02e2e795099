"""NumPy functions with the names of the kernels, which the emulated device calls. They take the
grid and then the kernel's arguments, and compute all programs of the grid.

Arrays are flat, from the address that the kernel gets to the end of its buffer; bfloat16 numbers
are their bits. A result may differ from the kernel's in the last bits, and obeys the same row rule:
each row is computed alone, in arrays whose sizes do not follow the batch.
"""
