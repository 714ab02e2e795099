"""The HTTP APIs, one folder or module each. None of them imports another.

A folder has `schema` (the bodies), `reading` (a body becomes a `requests.TextRequest`), `writing`
(outputs become replies and events) and `routes`. `server/all_endpoints.py` lists them all.
"""
