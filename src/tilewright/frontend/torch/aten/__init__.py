"""How operators of ATen are written in ONNX: a module for each kind of them, with a table from names to functions."""
