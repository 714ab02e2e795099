"""Ollama's routes: texts and vectors (`routes`), and models (`models`)."""
