"""What a checkpoint's own files configure."""
