"""`/embed`: the route of text-embeddings-inference (TEI). Its `/rerank` is in `scores`."""
