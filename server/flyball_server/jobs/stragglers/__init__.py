"""Stragglers: announced and detected slowdowns."""
