"""Formats of calls of tools, one syntax in each module.

In the modules with `json` in their names, and in `hermes` and `mistral`, the arguments are JSON.
In the others they are tags, Python literals or channels. `registry` in `parsers` lists all.
"""
