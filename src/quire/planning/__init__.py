"""Turns the user's arguments, a checkpoint and the machine into one concrete plan. Does not read
weights."""
