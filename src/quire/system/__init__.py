"""What Quire needs of the operating system and of Python: child processes, the clock."""
