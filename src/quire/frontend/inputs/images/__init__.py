"""Pictures of prompts: given.py reads what callers give, placing.py puts them into the tokens."""
