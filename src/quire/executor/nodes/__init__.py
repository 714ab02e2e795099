"""The machines of an engine: how the ranks of each are started, connected and watched.

`gather` brings the machines together, `Node` is one of them for the engine, and `agent` is the
program that runs on the others. `handshake`, `links` and `tls` protect their connections.
"""
