"""JSON schemas: how they are written for llguidance, what meets in one place, where a part lies."""
