"""Measuring: `latency`, `throughput`, `serve`, `startup`, with vLLM bench's definitions and keys.

`quire bench` calls these. Each takes one record of options and returns a dict of results.
"""
