"""Responses that are kept in memory, for `previous_response_id` and the routes that read them."""
