"""Code shared by the replies of all APIs: heads, log-probabilities, token counts, chunks."""
