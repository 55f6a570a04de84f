"""Reports: what a run says of itself, for people and for machines."""
