"""`/v1/responses`: OpenAI's Responses API.

A response is made of items (`items_schema`), which `messages` turns into a conversation and
`writing` makes of the reply. `store` keeps responses, and `create` answers the routes.
"""
