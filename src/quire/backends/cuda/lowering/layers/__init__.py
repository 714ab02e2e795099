"""Layers with kernels of their own: experts (`route`, `experts`), recurrent layers (`states`,
`recurrent`), latent attention (`latent`, `heads`), and layers that keep nothing (`uncached`).

`table.py`, one folder up, has the entries.
"""
