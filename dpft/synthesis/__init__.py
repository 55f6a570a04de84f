"""Synthesis of tables: a private table in, a synthetic table out (``dpft synthesize``)."""
