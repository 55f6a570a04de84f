"""Tasks: what a record is, and how it becomes a prompt and a target."""
