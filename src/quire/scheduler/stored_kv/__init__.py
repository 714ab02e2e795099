"""What the scheduler gives to the KV store, and what it has loaded from it."""
