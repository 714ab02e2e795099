"""Helpers of vLLM that scripts use, for command lines, streams, addresses and ids."""
