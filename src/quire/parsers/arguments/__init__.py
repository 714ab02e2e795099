"""Arguments that are written one by one, without types or in no JSON, and their grammar."""
