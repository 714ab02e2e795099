"""Image encoders in files of their own, llama.cpp's `mmproj` files: configuration and names.

row.py       `Projector`: what is known of one value of `clip.projector_type`
families.py  the table of them
gemma4.py    those of Gemma 4
names.py     names in an unpacked directory
joined.py    config.json and preprocessor_config.json of a model with such a file
"""
