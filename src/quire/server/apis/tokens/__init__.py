"""`/inference/v1/generate`: tokens in, tokens out."""
