"""The tensors of GGUF files, under the names and in the order of rows that families know."""
