"""Emulated ranks in virtual time."""
