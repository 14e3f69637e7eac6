"""The checks of `flyball doctor`: each says what it found and what to do; none changes anything."""
