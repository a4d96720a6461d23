"""Layers of few bits in the forms that a target has instructions for: the passes that need to know it, as one."""

from tilewright.graph.graph import Graph
from tilewright.graph.passes.contract_blocks import contract_blocks
from tilewright.graph.passes.contract_integers import BYTE_PAIRS, contract_integers
from tilewright.graph.passes.delay_dequantize import delay_dequantize, fake_quantize
from tilewright.target.intrinsics import (
    block_products,
    bounded_byte_products,
    byte_products,
    sums_shorts,
)
from tilewright.target.target import Target


def few_bits_of(graph: Graph, target: Target) -> Graph:
    """Quantised layers as sums of integers, weights with scales by blocks as they are stored."""
    products = byte_products(target)
    are_widened = not products and sums_shorts(target)
    graph = delay_dequantize(graph)
    types = BYTE_PAIRS if are_widened else products
    graph = contract_integers(graph, types, bounded_byte_products(target), are_widened=are_widened)
    graph = contract_blocks(graph, block_products(target), target.lanes(4))
    return fake_quantize(graph)
