"""Images of prompts.

given.py    reads what callers give as images
placing.py  puts images into the tokens of a prompt
prompts.py  `ImagePrompts`: both for one model
chats.py    conversations with images, without a server
"""
