"""Requests of chats: their tools, and how their replies are read."""
