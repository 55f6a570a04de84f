"""Estimate a run's memory from the shapes of its model, before it runs."""
