"""The child processes that render templates, and the protocol of their sockets."""
