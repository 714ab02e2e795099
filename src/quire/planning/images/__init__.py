"""Images: choice.py decides whether an engine takes them, encoder.py plans the encoder."""
