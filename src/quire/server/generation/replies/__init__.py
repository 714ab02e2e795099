"""What the replies of all APIs share: heads, log-probabilities, token counts, chunks."""
