"""Additional tasks of a front end: admission, metrics, spans, log lines."""
