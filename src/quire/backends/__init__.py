"""Ways to compute: `base` is the contract, one package per implementation."""
