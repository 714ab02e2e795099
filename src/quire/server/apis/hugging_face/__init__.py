"""The APIs of Hugging Face's servers: text-generation-inference and text-embeddings-inference."""
