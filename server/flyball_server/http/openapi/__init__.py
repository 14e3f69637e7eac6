"""Description and examples of the REST API."""
