"""``dpft tokenizer``: from records to a private vocabulary."""
