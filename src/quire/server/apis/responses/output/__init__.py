"""From the events of a reply to a response and its stream events."""
