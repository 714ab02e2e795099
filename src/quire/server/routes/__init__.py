"""The endpoints, by theme, and `table`, which lists them all for the router and OpenAPI."""
