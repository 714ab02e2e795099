"""The tokenizer returned by `get_tokenizer()`, with methods of `transformers` tokenizers."""
