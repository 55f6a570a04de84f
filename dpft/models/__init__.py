"""Models: loading, per-example losses, and what a model must not contain."""
