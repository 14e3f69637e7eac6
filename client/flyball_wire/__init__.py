"""Types, vocabulary and routes that clients and planner share."""
