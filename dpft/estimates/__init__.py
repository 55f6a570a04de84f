"""Estimates of a run's memory from the shapes of its model, before the run starts."""
