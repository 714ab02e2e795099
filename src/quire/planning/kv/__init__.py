"""Planning of K/V: what determines its bits, and where it is kept besides the block pool."""
