"""For people: what a directory of chunk files holds, whether it is sound, and how to move it."""
