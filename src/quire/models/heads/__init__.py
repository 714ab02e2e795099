"""Draft heads: small programs that read hidden states of the model for which they draft."""
