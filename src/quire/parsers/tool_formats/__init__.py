"""How families of models write tool calls: one file per syntax. In `json/`, arguments are JSON as
the model writes them."""
