"""Sounds of requests.

rules.py     what a feature extractor does, as data
wav.py       WAV files to samples; resampling
container.py other files to samples, by PyAV
spectrum.py  samples to features
child.py     both, in a child process
"""
