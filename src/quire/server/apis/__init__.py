"""The HTTP APIs, one folder or module each: routes, schemas, and writers of replies."""
