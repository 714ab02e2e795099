"""Speech to text with encoder-decoder models (Whisper): a whole file, window by window.

records.py     options, segments, words, and what the engine does for a window
transcriber.py the procedure for a file; engine.py: with an AsyncLLM
sound_file.py  the spectrum of a file, in a temporary file
speech.py      which parts have speech; timeline.py: windows and times of these parts
segmenting.py  windows one after the other or several at once, and their segments (cutting.py)
decoding.py    the tokens of a window: prompt and fallback
words.py       times of words, with alignment.py and word_splitting.py
formats.py     srt, vtt, tsv, text and verbose_json
"""
