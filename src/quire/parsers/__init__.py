"""Parses the text that a model writes into a message: reasoning, content and calls of tools.

`ReplyFormat` says how a family of models writes, `ReplyParser` converts text into events as it
arrives, and `reply_constraint` is the grammar that holds the calls. `detection` finds the format.
"""
