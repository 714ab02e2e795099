"""Plain ASGI layers around the routes, outermost first: request ids and the access log, CORS,
API keys (`server.auth`), bounds on the body."""
