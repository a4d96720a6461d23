"""A model of two parts in sequence, one that is quicker with a plugin and one that is quicker without.

Which parts these are is found by measuring all that there are (`benchmarks.placement_parts`).
"""

from collections.abc import Mapping

from onnx import ModelProto

from benchmarks.placement_measure import option_sets, race
from benchmarks.placement_parts import PARTS, Layer, model_of
from benchmarks.placement_results import CLEARLY, MEASURED, NATIVE, Composed, Row

LAYERS = 4  # of a part that is measured alone
PART_MS = 8.0  # of each part of a composed model, with whom it is quicker
MOST_LAYERS = 32
SHORTEST_MS = PART_MS * LAYERS / MOST_LAYERS
_PART_ROUNDS, _PART_SECONDS = 7, 0.05


def measure_part(name: str, plugins: tuple[str, ...], threads: int) -> Row:
    """An operator as native code and with each plugin."""
    single = {
        who: plugin_options
        for who, plugin_options in option_sets(plugins, threads).items()
        if who != MEASURED
    }
    model = model_of(*_layers(name, LAYERS))
    return race(model, single, threads=threads, rounds=_PART_ROUNDS, seconds=_PART_SECONDS)


def choose_parts(parts: Mapping[str, Row], plugin: str) -> tuple[str, str] | None:
    """What is quicker with the plugin by most, and what without; None if there is no such pair. What is over at once,
    however many layers there are, is no part.
    """
    both = {name: row for name, row in parts.items() if {NATIVE, plugin} <= row.times.keys()}
    taken = {
        name: row
        for name, row in both.items()
        if row.programs[plugin].regions and min(p.median for p in row.times.values()) >= SHORTEST_MS
    }
    with_it = {name: row.ratio(NATIVE, plugin).low for name, row in taken.items()}
    without = {name: row.ratio(plugin, NATIVE).low for name, row in taken.items()}
    theirs = max(with_it, key=with_it.__getitem__, default="")
    ours = max(without, key=without.__getitem__, default="")
    if not theirs or with_it[theirs] < CLEARLY or without[ours] < CLEARLY:
        return None
    return theirs, ours


def compose(parts: Mapping[str, Row], plugin: str, theirs: str, ours: str) -> ModelProto:
    """Both parts in sequence, with as many layers of each as take about the same time."""
    first = _layers(theirs, _count(parts[theirs].times[plugin].median))
    second = _layers(ours, _count(parts[ours].times[NATIVE].median))
    return model_of(*first, *second)


def measure_composed(
    parts: Mapping[str, Row], plugin: str, *, threads: int, rounds: int, seconds: float
) -> Composed | None:
    """None if no two parts differ enough."""
    chosen = choose_parts(parts, plugin)
    if chosen is None:
        return None
    model = compose(parts, plugin, *chosen)
    row = race(model, option_sets((plugin,), threads), threads=threads, rounds=rounds, seconds=seconds)
    return Composed(plugin, *chosen, row)


def _layers(name: str, count: int) -> list[Layer]:
    return [PARTS[name]] * count


def _count(ms: float) -> int:
    """Layers that take `PART_MS`, where `LAYERS` take `ms`."""
    return max(1, min(MOST_LAYERS, round(PART_MS * LAYERS / ms)))
