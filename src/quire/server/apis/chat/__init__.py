"""`/v1/chat/completions`: tools, reasoning and templates, which other APIs use too."""
