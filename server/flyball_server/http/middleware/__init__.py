"""ASGI middleware: limits, logging, metrics, headers, access."""
