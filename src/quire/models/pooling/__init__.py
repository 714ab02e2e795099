"""Programs that end in vectors: embedders, classifiers and rerankers.

head.py        what follows the last hidden states, as config.json is marked with it
program.py     a family's hidden states and the head, as one program
reading.py     from a checkpoint's files and the arguments to the head
"""
