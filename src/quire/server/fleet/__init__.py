"""Several models in one server: which there are, which are loaded, and their memory."""
