"""The web page, its live view, and the documentation."""
