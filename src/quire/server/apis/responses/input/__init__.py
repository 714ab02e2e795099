"""From a request of `/v1/responses` to a chat."""
