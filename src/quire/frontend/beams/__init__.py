"""Beam search for both front ends: each step is a request of one token for each beam."""
