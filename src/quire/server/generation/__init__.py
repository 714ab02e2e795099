"""From a request for text to the engine and back, for every API.

`begin` checks a request and hands it to the engine, `run.Generation` is its work there, and
`reply`, `streams` and `writer` are the bases of the APIs' writers. `pooling` does the same for
vectors, classes and scores.
"""
