"""The types of `/v1/responses`: requests, items, replies, and stream events."""
