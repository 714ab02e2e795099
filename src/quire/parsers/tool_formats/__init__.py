"""How families of models write calls of tools: a file for each syntax. In `json/`, arguments are
JSON as the model writes them."""
