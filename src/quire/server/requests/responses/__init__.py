"""From a request of `/v1/responses` to one of `/v1/chat/completions`."""
