"""vLLM's classes of reply parsers and of requests, and the use of plug-ins written for them."""
