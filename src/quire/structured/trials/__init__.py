"""Whether a grammar works, found out in a child process before the engine has it."""
