"""Where in a reply its text is free: there the mask stays as it is, whatever is written."""
