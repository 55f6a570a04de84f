"""What a run will need of a machine, foretold without running it: memory, traffic and time."""
