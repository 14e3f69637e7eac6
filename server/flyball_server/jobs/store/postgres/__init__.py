"""Job store on PostgreSQL."""
