"""`quire bench sweep`: a benchmark under many settings, one after the other."""
