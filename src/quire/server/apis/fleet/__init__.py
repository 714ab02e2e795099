"""Loading and unloading models over HTTP."""
