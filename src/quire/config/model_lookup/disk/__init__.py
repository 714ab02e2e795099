"""Models in the folders of other programs, and in folders that the user names.

`places.found_models` lists them, its result finds one by its name, and `use.options_of` gives the
options with which an engine runs it. Nothing is copied. Everything that is read is untrusted.
"""
