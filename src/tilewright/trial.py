"""The process in which candidates run while they are timed: `python -m tilewright.trial`."""
