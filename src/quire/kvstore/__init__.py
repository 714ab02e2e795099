"""KV store: chunks of K/V in storage tiers. They outlive the request, the block pool and the
process.

The store is a cache: it never fails a request, never changes a token, never blocks without a
timeout, and never grows beyond its limits.
"""
