"""The APIs of Hugging Face's servers: text-generation-inference and text-embeddings-inference."""

TEI_NAMES = {"truncate_prompt_tokens=-1": "truncate=true", "truncate_prompt_tokens=": "truncate="}
"""Settings of text-embeddings-inference by the engine's names."""
