"""Structured output: what the text of a reply has to look like, and the tokens that keep it so.

`grammar_of` writes the grammar of a request's parameters, `GrammarTrial` tries it when the request
is validated, and `StructuredOutputManager` follows it and gives each step its masks.
"""
