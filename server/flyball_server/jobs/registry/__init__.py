"""Use cases of registration: jobs, ranks, profiles, targets."""
