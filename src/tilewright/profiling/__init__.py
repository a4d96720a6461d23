"""How the time of a run is measured call by call, and whose time it is."""
