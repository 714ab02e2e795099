"""Finds the begin and the end of the reasoning of a reply, in tokens: for budgets, and for grammars
that begin after it."""
