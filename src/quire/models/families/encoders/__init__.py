"""Families of encoders, which give vectors and classes."""
