"""What is left to PyTorch."""


class UnsupportedOperator(Exception):
    """An operator, or a use of one, that has no ONNX form here. Its text says why; it is no error: PyTorch runs it."""
