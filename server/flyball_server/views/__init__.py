"""Read models that REST, metrics and dashboard share."""
