"""Plans: as they are stored, and as ranks get them."""
