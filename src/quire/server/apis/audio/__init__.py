"""`/v1/audio/transcriptions`: the words of a sound."""
