"""The screen of `quire top`."""
