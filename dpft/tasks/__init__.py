"""Tasks: how a record becomes a prompt and a target, or texts and a label."""
