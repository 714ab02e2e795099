"""`/v1/responses`: requests, items, replies, and the events of a streamed one."""
