"""The image encoder of a worker: weights.py opens its tensors, encoder.py runs its programs."""
