"""Chains: a node, and what is then done to each element of its result. Libraries and accelerators do such things in
one go.

`chain_patterns` are for a plugin's `patterns`, `read_chain` reads a unit that they have found. An activation that the
model spells as several nodes, such as a GELU by error functions, is one link of a chain.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.graph.external import Answer, Part, Pattern, Unit
from tilewright.graph.graph import Node, Value
from tilewright.graph.passes.eliminate_dead import eliminate_dead
from tilewright.graph.passes.recognise_activations import recognise_activations
from tilewright.graph.segments import cut_out
from tilewright.ops.core.arithmetic import Add, Mul
from tilewright.ops.opdef import Op
from tilewright.support.errors import UserError


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """A function of one value, or its sum or product with `other`."""

    op: Op
    other: Value | None = None


@dataclass(frozen=True, slots=True, eq=False)
class UnitChain:
    head: Node
    links: tuple[Link, ...]


def _erf(x: Part) -> Part:
    return Part("Add", (Part("Erf", (Part(("Div", "Mul"), (x, None)),)), None))


# Activations in pieces, over what comes before: `read_chain` says whether they are what they look like.
_SPELLINGS: tuple[Callable[[Part], Part], ...] = (
    lambda x: Part("Mul", (Part("Mul", (x, _erf(x))), None)),
    lambda x: Part("Mul", (Part("Mul", (x, None)), _erf(x))),
    lambda x: Part("Mul", (x, Part("Mul", (_erf(x), None)))),
    lambda x: Part("Mul", (x, Part("Sigmoid", (Part("Mul", (x, None)),)))),
    lambda x: Part("Mul", (x, Part(("Sigmoid", "HardSigmoid"), (x,)))),
    lambda x: Part(("Mul", "Div"), (Part("Mul", (x, Part("Clip", (Part("Add", (x, None)),)))), None)),
)


def chain_patterns(
    heads: Sequence[str], functions: Sequence[str], check: Callable[[Unit], Answer]
) -> list[Pattern]:
    """One of the operators `heads`, up to two sums and products, and an activation: one of `functions`, or one in
    pieces. Longer chains come first.
    """
    name, chain, found = "/".join(heads), Part(tuple(heads)), list[Pattern]()
    for _ in range(3):
        longer = [Pattern(f"{name} + activation in pieces", end(chain), check) for end in _SPELLINGS]
        longer.append(Pattern(f"{name} + activation", Part(tuple(functions), (chain,)), check))
        found[:0] = [*longer, Pattern(name, chain, check)]
        name, chain = f"{name} + operand", Part(("Add", "Mul"), (chain, None))
    return found[:-1]  # the head alone is no chain


def read_chain(unit: Unit) -> UnitChain:
    """UserError if the unit is no chain."""
    part = cut_out(unit.graph, unit.name, unit.nodes, unit.inputs, unit.outputs)
    head, *rest = eliminate_dead(recognise_activations(part)).nodes
    value, links = head.outputs[0], list[Link]()
    for node in rest:
        others = [v for v in node.inputs if v is not value]
        is_operation = isinstance(node.op, Add | Mul)
        if len(node.inputs) - len(others) != 1 or len(others) != is_operation or len(node.outputs) != 1:
            raise UserError(f"{type(node.op).__name__} does not continue what {head.name} begins")
        links.append(Link(node.op, *others))
        (value,) = node.outputs
    return UnitChain(head, tuple(links))
