"""Private vocabularies: from words that are counted to a tokenizer."""
