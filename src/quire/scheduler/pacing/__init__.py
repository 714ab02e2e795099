"""How much of a step those have who do not generate one token each."""
