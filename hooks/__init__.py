"""The connection type of a fleet."""
