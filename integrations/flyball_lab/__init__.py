"""Demo and emulated clusters: they show Flyball and are no part of it."""
