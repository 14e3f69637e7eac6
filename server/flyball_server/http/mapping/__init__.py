"""Conversion between wire types and stored records."""
