"""The encoders of sounds, Qwen2-Audio and Voxtral (whisper.py). vision/ has what encoders share."""
