"""Loaders read one step ahead, and the work of the steps that they announce."""
