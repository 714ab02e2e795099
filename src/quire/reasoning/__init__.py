"""Where the reasoning of a reply begins and ends, in tokens: for budgets, and for grammars of what
follows it."""
