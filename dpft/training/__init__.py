"""Training: one loop for every task, method and privacy plan."""
