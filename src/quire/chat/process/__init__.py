"""The processes in which templates are rendered, and how they are talked to."""
