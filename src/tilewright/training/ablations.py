"""Trees with one thing less: what each part of the training is worth."""

from collections.abc import Mapping
from dataclasses import replace

from tilewright.learned.features import FEATURES
from tilewright.learned.graph_network import NetworkShape
from tilewright.learned.guard import KERNEL_COLUMNS
from tilewright.training.torch_network import NETWORK_SCHEDULES, NetworkSettings
from tilewright.training.trees import SCHEDULES, TreeSettings

ABLATIONS: Mapping[str, TreeSettings] = {
    "as it is": SCHEDULES,
    "no guard": replace(SCHEDULES, is_guarded=False),
    "no residual": replace(SCHEDULES, is_residual=False),
    "no residual, no guard": replace(SCHEDULES, is_residual=False, is_guarded=False),
    "one member": replace(SCHEDULES, members=1, caution=0.0),
    "no caution": replace(SCHEDULES, caution=0.0),
    "all schedules count the same": replace(SCHEDULES, emphasis=0.0),
    "squared errors of seconds": replace(SCHEDULES, loss="absolute"),
    "loss of pairs": replace(SCHEDULES, loss="rank"),
    "pairs say only which is quicker": replace(SCHEDULES, loss="rank", is_soft=False),
    "no terms of costs": replace(SCHEDULES, without=("term_",)),
    "no knobs": replace(SCHEDULES, without=("knob_",)),
    "no features of the kernel": replace(SCHEDULES, without=FEATURES[KERNEL_COLUMNS]),
}

NETWORK_ABLATIONS: Mapping[str, NetworkSettings] = {
    "network": NETWORK_SCHEDULES,
    "network, early join": replace(NETWORK_SCHEDULES, shape=NetworkShape("early", "columns"), epochs=20),
    "network, attention": replace(NETWORK_SCHEDULES, shape=NetworkShape("late", "attention")),
    "network, squared errors": replace(NETWORK_SCHEDULES, loss="absolute"),
    "network, no graph": replace(NETWORK_SCHEDULES, shape=NetworkShape(is_blind=True)),
}
