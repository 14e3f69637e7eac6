"""Parts that both SQL stores share."""
