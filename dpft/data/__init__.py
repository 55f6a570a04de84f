"""Data: rows from a source, tokens from rows, tensors from tokens."""
