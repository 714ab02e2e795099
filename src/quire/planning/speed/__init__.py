"""What speed to expect of a model here, before its weights are read."""
