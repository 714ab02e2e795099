"""`/embed` and `/embed_sparse` of text-embeddings-inference (TEI). Its `/rerank` is in `scores`."""
