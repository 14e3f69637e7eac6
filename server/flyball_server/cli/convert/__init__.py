"""`flyball convert`: plans, orders and profiles in the file formats of other tools."""
