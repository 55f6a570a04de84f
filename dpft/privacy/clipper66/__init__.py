"""Per-example clipping: gradients of single examples, scaled to a norm of at most C and summed."""
