"""How families of models mark their reasoning, and what of a prompt or a reply is reasoning."""
