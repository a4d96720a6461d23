"""A package of somebody else's that adds one of each kind. `register` makes them known; importing
`toy_extension.registered` does too.
"""

from tilewright.cli.commands import register_command
from tilewright.families.families import register_family
from tilewright.graph.passes import register_pass
from tilewright.schedule.steps import register_step
from tilewright.target.intrinsics import register_intrinsics
from tilewright.target.names import register_target
from toy_extension.command import COMMAND
from toy_extension.family import toy_space
from toy_extension.graph_pass import drop_second_abs
from toy_extension.intrinsic import ADD_4
from toy_extension.step import Halve
from toy_extension.target import toy_target


def register() -> None:
    register_step(Halve)
    register_family("toy", toy_space)
    register_pass(drop_second_abs)
    register_intrinsics(ADD_4)
    register_target("toy", toy_target)
    register_command(COMMAND)
