"""HTTP/1.1 connections: from bytes to ASGI calls and back, with a limit on every resource.

An `Acceptor` makes an `HttpConnection` for each client. Its `Receiver` feeds received bytes to a
`RequestParser`, which adds an `Exchange` for each request to the `Pipeline`. An exchange calls the
ASGI application and writes its reply by a `ReplyWriter` to the `Sender`. The event loop's
transports carry the bytes; a `SocketTransport` those of clients that ask for health first. The
limits:

- `FramingBudget`: bytes of a request other than its body.
- `PhaseTimer`: time until the client sends the next bytes.
- `Sender`: time until the client reads its reply.
- `PeerWatch`: whether a half-closed connection still has a client.
- `WorkScheduler`: time of the event loop for parsing.
- `ConnectionSlots`: number of connections, and which of them are closed for new ones.

httptools parses HTTP; uvicorn starts and stops the server.
"""
