"""`/v2/embed`: Cohere's route to vectors."""
