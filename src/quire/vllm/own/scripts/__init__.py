"""Helpers of vLLM that scripts use: command lines, streams, addresses, ids."""
