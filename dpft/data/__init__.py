"""Data: from a source to rows, from rows to token ids, from token ids to tensors."""
