"""Orders of all schedules, one generator each; `table` has them by name."""
