"""How many prompt tokens and forced tokens a step computes next to generating requests."""
