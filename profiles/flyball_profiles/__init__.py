"""Stage profiles and GPU tables: data, the types that hold it, and their readers.

Standard library only; every other Flyball package may import this package.
"""
