"""Runs compiled programs. Needs numpy, ml_dtypes and `tilewright.support`, and nothing of the compiler."""
