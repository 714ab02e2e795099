"""A request of any API: read from a body, checked, and made a prompt.

`request.TextRequest` is the type that all APIs share. `fields` has the fields that bodies have in
common, and `reading` reads them. Nothing here knows an API, the engine's work, or a reply.
"""
