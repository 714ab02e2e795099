"""HTTP below the routes: the protocol, its bounds, keys, errors, layers around the routes."""
