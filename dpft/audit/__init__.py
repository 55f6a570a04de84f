"""Audits: attacks on finished runs, to compare their results with the epsilon in the report."""
