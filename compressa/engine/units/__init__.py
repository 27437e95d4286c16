"""Units: what travels together, how it is summed and in which order."""
