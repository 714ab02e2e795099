"""What the routes for vectors, classes and scores share."""
