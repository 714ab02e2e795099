"""Work of a native model's step besides its ops: exchanges with other ranks, and K and V."""
