"""Commands for the models on this machine and those of a running server."""
