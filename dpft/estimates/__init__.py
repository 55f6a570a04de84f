"""Estimates of a run's memory, network traffic and time, before it runs."""
