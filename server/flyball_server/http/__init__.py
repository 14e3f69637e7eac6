"""The planner's HTTP edge: routes, their documentation, and every error as one JSON body."""
