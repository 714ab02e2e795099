"""Several models in one server: which there are, which are loaded, and their memory.

`Fleet` loads and unloads `Member`s within one budget. `use` keeps a model loaded while a request
needs it, and `library` downloads, copies and deletes models.
"""
