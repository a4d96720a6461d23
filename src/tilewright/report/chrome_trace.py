"""One run as events that `chrome://tracing` and Perfetto read: a row for each thread, a bar for each span of parts."""

from typing import Any

from tilewright.report.data import ReportData

_PROCESS = 1


def chrome_trace(report: ReportData) -> dict[str, Any]:
    events: list[dict[str, Any]] = [
        {
            "name": "process_name",
            "ph": "M",
            "pid": _PROCESS,
            "tid": 0,
            "args": {"name": f"{report.model.name} (Tilewright)"},
        }
    ]
    for thread in sorted({s.thread for s in report.timeline.spans}):
        name = "caller" if thread == 0 else f"worker {thread}"
        events.append(
            {"name": "thread_name", "ph": "M", "pid": _PROCESS, "tid": thread, "args": {"name": name}}
        )
    for s in report.timeline.spans:
        call = report.calls[s.call]
        kernel = report.kernels[call.kernel]
        box = None if call.box is None else report.boxes[call.box]
        events.append(
            {
                "name": kernel.name,
                "cat": kernel.family or "kernel",
                "ph": "X",
                "pid": _PROCESS,
                "tid": s.thread,
                "ts": s.begin * 1e6,
                "dur": (s.end - s.begin) * 1e6,
                "args": {
                    "parts": s.parts,
                    "of_parts": kernel.parts,
                    "call": s.call,
                    "group": "" if box is None else box.name,
                    "nodes": [] if box is None else [report.nodes[n].name for n in box.nodes],
                },
            }
        )
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"model": report.model.name, "machine": report.machine.summary},
    }
