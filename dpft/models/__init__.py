"""Models: loading, architectures, heads, and per-example losses."""
