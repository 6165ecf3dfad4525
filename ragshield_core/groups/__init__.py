"""Groups of entries that are more alike than their surroundings explain, and their graph."""
