"""`/v1/responses`: OpenAI's Responses API, in terms of chats."""
