"""Ollama's routes: texts (`texts`), models (`models`) and vectors (`routes`)."""
