"""The layers between a connection and the routes of all APIs.

Who may use the server (`auth`), limits and ids of requests (`middleware`), errors as replies
(`problems`), streams of events (`event_stream`), and the socket on which the server listens.
"""
