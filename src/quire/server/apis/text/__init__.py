"""The tokenizer and the render endpoints."""
