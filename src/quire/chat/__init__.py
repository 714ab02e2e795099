"""From a conversation to the prompt text that its model was trained on."""
