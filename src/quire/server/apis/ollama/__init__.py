"""`/api/embed`: Ollama's route to vectors."""
