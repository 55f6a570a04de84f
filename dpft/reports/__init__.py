"""Reports about runs, for people and for programs."""
