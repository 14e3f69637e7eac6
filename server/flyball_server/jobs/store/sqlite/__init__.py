"""Job store on SQLite."""
