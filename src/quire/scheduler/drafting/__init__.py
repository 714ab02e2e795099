"""Draft tokens: guesses of the next tokens, which one step checks together.

A draft can be right or wrong, but never visible in the output: each token is sampled exactly as it
would be without drafts, and a guess only saves the step that it makes unnecessary.
"""
