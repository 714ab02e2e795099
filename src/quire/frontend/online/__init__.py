"""`AsyncLLM` and its parts: streams of outputs on an event loop.

`OnlineRequests` holds the requests from admission to the ends of their `RequestStream`s.
`InputSession` is a request whose prompt arrives in pieces.
"""
