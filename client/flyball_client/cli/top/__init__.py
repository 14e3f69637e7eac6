"""`flyball top`: jobs followed live on a terminal."""
