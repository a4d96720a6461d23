"""From a scheduled Func to kernels that a code generator takes, as one list of passes."""
