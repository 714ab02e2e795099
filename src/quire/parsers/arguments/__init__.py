"""Arguments written one by one, without types or not as JSON, and their grammar."""
