"""Sounds of requests, and the spectra of long sounds.

rules.py        what a feature extractor does, as data
reading.py      files of all types to blocks of samples, with wav.py and container.py (PyAV)
resampling.py   samples at another rate
spectrum.py     samples to features
child.py        a sound of a prompt to its features, in a child process
stream_child.py a sound of hours to its spectrum, block by block, in another
"""
