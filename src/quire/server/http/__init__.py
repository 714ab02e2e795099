"""HTTP around the routes: keys, errors, layers, streams, where the server listens."""
