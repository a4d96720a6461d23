"""One application in a process of its own: `python [-m tilewright.ort] -m benchmarks.application_worker …`.

Whatever `import onnxruntime` gives here is what the application gets. Its `InferenceSession` is wrapped, in the same
way whoever it is: sessions are given the number of threads (unless the application decides it), and the time inside of
`run` is added up. Prints one line of JSON; the arrays of one unit of work go to a file.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.application_cases import APPLICATIONS


class Watch:
    """What sessions do, as seen from outside."""

    def __init__(self) -> None:
        self.loading = 0.0
        self.inside = 0.0
        self.calls = 0
        self.models: list[str] = []
        self.outputs: dict[str, Any] | None = None
        self._sessions: dict[int, int] = {}

    def wrap(self, session: Any, options: Callable[[], Any], threads: int) -> None:
        make, run = session.__init__, session.run

        def made(self_: Any, model: Any, sess_options: Any = None, *rest: Any, **named: Any) -> None:
            given = options() if sess_options is None else sess_options
            if given.intra_op_num_threads <= 0:
                given.intra_op_num_threads = threads
            start = time.perf_counter()
            make(self_, model, given, *rest, **named)
            self.loading += time.perf_counter() - start
            self.models.append("bytes" if isinstance(model, bytes) else os.path.basename(model))

        def ran(self_: Any, *arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            results = run(self_, *arguments, **named)
            self.inside += time.perf_counter() - start
            self.calls += 1
            if self.outputs is not None:
                which = self._sessions.setdefault(id(self_), len(self._sessions))
                for i, r in enumerate(results):
                    self.outputs[f"{which}.{i}.{len(self.outputs)}"] = np.array(r)
            return results

        session.__init__, session.run = made, ran


def main() -> None:
    name, threads, warm, times, where = sys.argv[1:6]
    cpus = sorted(os.sched_getaffinity(0))[: int(threads)]
    os.sched_setaffinity(0, cpus)
    onnxruntime = import_module("onnxruntime")
    watch = Watch()
    watch.wrap(onnxruntime.InferenceSession, onnxruntime.SessionOptions, int(threads))
    application = next(a for a in APPLICATIONS if a.name == name)
    work = application.prepare()
    first = time.perf_counter()
    work()
    first = time.perf_counter() - first
    for _ in range(int(warm)):
        work()
    watch.outputs = {}
    results = work()
    np.savez(where, **watch.outputs)
    watch.outputs = None
    calls = watch.calls
    inside: list[float] = []
    whole: list[float] = []
    for _ in range(int(times)):
        watch.inside, watch.calls = 0.0, 0
        start = time.perf_counter()
        work()
        whole.append(time.perf_counter() - start)
        inside.append(watch.inside)
    calls = watch.calls
    found = {
        "engine": "tilewright" if getattr(onnxruntime, "is_tilewright", False) else "onnxruntime",
        "version": onnxruntime.__version__,
        "models": watch.models,
        "load": watch.loading,
        "first": first,
        "calls": calls,
        "inside": inside,
        "whole": whole,
        "results": results,
    }
    print("\n" + json.dumps(found, default=str))


if __name__ == "__main__":
    main()
