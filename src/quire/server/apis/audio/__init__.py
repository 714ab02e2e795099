"""`/v1/audio/transcriptions` and `/v1/audio/translations`: the words of a sound.

schema.py         the form and the replies
reading.py        the form as options
timed_words.py    models of Whisper's kind, which give times
chat_words.py     models that hear sounds in chats, such as Voxtral
routes.py         the routes
"""
