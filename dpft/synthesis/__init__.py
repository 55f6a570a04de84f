"""``dpft synthesize``: a private table in, a synthetic table out."""
