"""Speech to text with encoder-decoder models (Whisper): a whole file, window by window.

records.py   options, segments, words, and what the engine does for a window
"""
