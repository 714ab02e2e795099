"""Beam search, which both front ends drive: each step is a request of one token for each beam."""
