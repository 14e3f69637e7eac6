"""The rank's one helper process: it calls the planner, checks and compiles what that answers."""
