"""From a request in Anthropic's form to the chat request that says the same."""
