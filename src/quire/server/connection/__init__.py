"""HTTP/1.1 on one connection: from bytes to ASGI calls and back, with a bound on everything.

An `Acceptor` makes an `HttpConnection` for each client. That feeds a `RequestParser`, keeps an
`Exchange` for each request until it is answered, and holds every client to the same few rules:

- `limits.budget`: the bytes of a request that are not its body.
- `limits.phases`: the time in which the client must go on.
- `limits.outlet`: the time in which the client must read.
- `limits.peer_watch`: whether a client that will send no more still listens.
- `limits.turns`: the time of the event loop that parsing may take.
- `limits.seats`: how many connections there are, and which of them make room for others.

httptools parses, uvicorn begins and ends, the application knows ASGI alone.
"""
