"""Images of prompts.

given.py    reads what callers give as images and videos
embeds.py   reads images that the caller has encoded
placing.py  puts images into the tokens of a prompt
prompts.py  `ImagePrompts`: all of it for one model
"""
