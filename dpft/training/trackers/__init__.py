"""Trackers, one file each: where a run's public quantities are shown beside those of other runs."""
