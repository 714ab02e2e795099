"""Architectures with recurrent layers and with latent attention."""
