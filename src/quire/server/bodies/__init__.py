"""JSON and forms, in and out: bodies as typed records, and replies in pieces.

Large bodies are decoded and large replies encoded piece by piece and off the event loop. The
routes see records alone.
"""
