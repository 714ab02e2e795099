"""`/v1/embeddings`, `/pooling` and `/classify`: vectors and classes of texts."""
