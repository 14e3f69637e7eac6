"""Parts that several integrations use."""
