"""How to decide what plugins run. Light to import: the command line lists it in its help."""

from enum import Enum, unique


@unique
class Policy(Enum):
    GREEDY = "greedy"  # whatever a plugin takes it gets, unless that is much in little pieces; the first named first
    MEASURED = "measured"  # what is fastest, by measuring parts of the model and the whole
    MODEL = "model"  # what is fastest by estimates and what plugins say of themselves; nothing is measured
