"""`/v1/responses`: responses and their events, out of the events of a reply's parser."""
