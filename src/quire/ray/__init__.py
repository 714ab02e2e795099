"""Quire on a Ray cluster, as applications of Ray Serve."""
