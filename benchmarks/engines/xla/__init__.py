"""ONNX files as functions of JAX, which is how XLA gets to see them.

An operator is a function over arrays: inputs are positional (None where one is left out), attributes are keyword
arguments with the defaults of the specification. One that a function does not know is an error, so that nothing is
taken for something else. These modules import jax and onnx: only the engine imports them.
"""
