"""Where templates run: what they may call, and how much they may use up."""
