"""Pictures, videos and sounds of requests: where they come from, how they are decoded, and their
tiles.

sources.py     from a URL or a part of a message to bytes
fetch.py       downloads from configured domains, to public addresses alone
rules.py       resizing and tiling of each family, as data
child.py       bytes to tiles by Pillow, in a child process (process.py)
serving.py     the loop of the child processes
sound/         the same for sounds
time_limit.py  how long the files of a request may take
picture.py     the result: tiles, their layout and the digest
"""
