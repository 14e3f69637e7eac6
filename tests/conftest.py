"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# An example may wait for a compiler or a slow machine: nothing here is timed.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
