"""Pictures of requests: manager.py encodes them between steps by way of encoder.py, cache.py keeps
the results."""
