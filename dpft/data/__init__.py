"""Data pipeline from a source to rows, from rows to token ids, and from token ids to tensors."""
