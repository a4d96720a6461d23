"""ONNX files as modules of PyTorch, which is how eager PyTorch and Inductor get to see them.

An operator is a function over tensors: inputs are positional (None where one is left out), attributes are keyword
arguments with the defaults of the specification. One that a function does not know is an error, so that nothing is
taken for something else. Each calls what somebody who writes PyTorch would call: `layer_norm`, not its parts. These
modules import torch and onnx: only the engines import them.
"""
