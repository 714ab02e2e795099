"""Whisper's checkpoints of CTranslate2 (faster-whisper) and whisper.cpp, as model directories.

names.py           the modules of a Whisper model, by their names in each format
ctranslate2.py     the arrays of a `model.bin`
ggml.py            the header and the tensors of a `ggml-*.bin`
tensors.py         the tensors of either, under transformers' names
special_tokens.py  the special tokens, their ids, and the files of the tokenizer
alignment_heads.py the heads that follow the sound
unpack.py          makes a model directory, whose weights are a link to the file
"""
