"""What the commands about the KV store print and do."""
