"""The report of a private vocabulary."""
