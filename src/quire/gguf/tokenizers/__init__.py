"""Parts of the tokenizers of GGUF files; `gguf/tokenizer.py` joins them."""
