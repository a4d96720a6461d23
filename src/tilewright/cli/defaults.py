"""Values of options of the command line where none is given."""

TOLERANCE = 1e-4  # of the largest magnitude of an output: what float32 networks agree to
TIMEOUT = 600.0  # seconds for one answer of an engine: some compile for minutes
