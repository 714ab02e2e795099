"""Charts and reports of `quire bench serve`."""
