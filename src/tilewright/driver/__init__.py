"""From a graph to scheduled kernels: the list of passes, and the trace of what they decide."""
