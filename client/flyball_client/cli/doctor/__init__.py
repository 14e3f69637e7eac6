"""Checks of `flyball doctor`, with findings and advice; they change nothing."""
