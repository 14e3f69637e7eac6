"""The planning core. Pure: arguments in, frozen results out; no files, clocks or wire types."""
