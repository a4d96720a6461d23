"""Funcs that stream: which of them have a space of rows (`row_space.py`)."""

from math import inf

from tilewright.families.family import ScheduleRequest
from tilewright.families.space import Space
from tilewright.families.stream.match import try_any_fold, try_flow_graph, try_row_products
from tilewright.families.stream.row_space import StreamSpace
from tilewright.families.stream.window_space import windows_space


def stream_space(request: ScheduleRequest) -> Space | None:
    """Of what is read once, and of windows; and of a contraction that no other family has taken so far."""
    start = request.plain
    if start is None:
        return None
    windows = windows_space(start, request.target)
    if windows is not None:
        return windows
    graph = try_flow_graph(start.func) or try_row_products(start.func)
    if graph is None and request.limit == inf:
        graph = try_any_fold(start.func)
    return None if graph is None else StreamSpace(start, graph, request.target)
