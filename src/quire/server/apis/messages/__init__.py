"""`/v1/messages`: Anthropic's Messages API.

`conversation` turns blocks into messages of a chat, and `writing` makes blocks of the reply.
`reply` has the structs of replies, events and errors.
"""
