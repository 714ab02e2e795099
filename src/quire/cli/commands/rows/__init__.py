"""Commands that compute something for every row of a file."""
