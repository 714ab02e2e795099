"""What is settled about K/V: what shapes its bits, and where it is kept beyond the block pool."""
