"""Pictures of requests: manager.py encodes them between steps, cache.py keeps the results."""
