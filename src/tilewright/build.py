"""`build`: a tensor program as a native function over numpy arrays."""
