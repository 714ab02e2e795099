"""The types of the HTTP surface: what validates requests, shapes replies and documents both."""
