"""Writing of a program by a model file: `Builder` and its parts."""
