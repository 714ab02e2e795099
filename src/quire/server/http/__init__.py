"""HTTP parts shared by the routes: API keys, errors, middleware, streams, listening socket."""
