"""Pure: what a job should run now, and where it stands against that."""
