"""Everything that makes the bundled demo model: data, tokenizer, training and scores."""
