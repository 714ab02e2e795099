"""The tokenizer that `get_tokenizer()` gives: the methods of one of `transformers`."""
