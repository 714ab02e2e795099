"""`/score` and `/rerank`: how well texts fit a query."""
