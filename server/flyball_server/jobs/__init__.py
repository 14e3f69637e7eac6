"""Jobs: their records, states, stores and use cases; knows neither HTTP nor the wire."""
