"""Plans and frontiers as pictures, colours and traces."""
