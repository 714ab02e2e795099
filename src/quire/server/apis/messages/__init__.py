"""`/v1/messages`: Anthropic's Messages API, in terms of chats."""
