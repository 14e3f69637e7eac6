"""Jobs: records, states, stores and use cases, independent of HTTP and the wire types."""
