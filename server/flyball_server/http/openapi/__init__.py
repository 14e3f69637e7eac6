"""Description of the REST API."""
