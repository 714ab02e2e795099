"""The command line of records: options made from the fields of dataclasses, and their parser.

A field is declared once, with its help, flags and checks (`config/declaration.py`); `options` makes
command-line options of it, and `parser` reads words, files and short forms.
"""
