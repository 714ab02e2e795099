"""What a client of one connection may use up: bytes, time and connections."""
