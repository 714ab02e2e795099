"""Configuration from a checkpoint's own files."""
