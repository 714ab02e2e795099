"""JSON in and out: typed bodies, queries, and replies in pieces."""
