"""Measured savings and comparisons."""
