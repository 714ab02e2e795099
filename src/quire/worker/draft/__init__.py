"""A second model that proposes draft tokens: its memory, and its steps."""
