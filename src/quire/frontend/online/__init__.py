"""`AsyncLLM` and what it is made of: streams, admission, requests in flight."""
