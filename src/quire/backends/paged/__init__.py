"""Code shared by backends that keep K/V in a NumPy array of blocks and give logits as NumPy
arrays."""
