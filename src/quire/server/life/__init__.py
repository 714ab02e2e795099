"""How a server loads its models, lives with them and closes them."""
