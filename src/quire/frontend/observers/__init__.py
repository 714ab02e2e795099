"""What a front end does beside giving outputs: admission, metrics, spans, log lines."""
