"""Instructions, orders, dependencies and paths of pipelines (standard library only)."""
