"""Audits: attacks on finished runs, whose results are compared with the epsilon in the report."""
