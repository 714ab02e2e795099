"""`AsyncLLM` and its parts: streams, admission, requests in flight."""
