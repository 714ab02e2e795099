"""Several engines with the same model in one server (data parallel)."""
