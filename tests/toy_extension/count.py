"""The work of the command `toy`: only this imports onnx."""

from pathlib import Path

import onnx

from tilewright.cli.output import print_json


def count(model: Path, as_json: bool) -> None:
    nodes = len(onnx.load(model).graph.node)
    if as_json:
        print_json({"nodes": nodes})
    else:
        print(f"{nodes} nodes")
