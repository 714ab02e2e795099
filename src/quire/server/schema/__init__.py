"""The types of the HTTP API: they validate requests, define replies, and document both."""
