"""Code that several benchmarks use, and the programs that run a peer's engine."""
