"""Tools for `quire kv`: inspect, check, clean up and move a directory of chunk files."""
