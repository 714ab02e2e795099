"""The layers between a connection and the routes of all APIs.

Who may use the server (`auth`, `web_pages`), limits and ids of requests (`middleware`), errors as
replies (`problems`), streams of events (`event_stream`), and the socket of the server.
"""
