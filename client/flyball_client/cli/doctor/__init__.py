"""Checks of `flyball doctor`, with findings and advice; only `--transitions` sets clocks."""
