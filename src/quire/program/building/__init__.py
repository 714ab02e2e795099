"""How a model file writes a program: `Builder` and its parts."""
