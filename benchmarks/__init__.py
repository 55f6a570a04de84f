"""Side-by-side timings of dpft against ordinary training and its peers."""
