"""The importer on files that are almost right: `python -m tests.fuzz.import_campaign --files 100000`.

Each file must be imported or refused with a UserError, within limits of time and memory. The importer runs in child
processes; one that dies or hangs is replaced, and the file that did it is saved as `<folder>/<number>.onnx`.
"""

import argparse
import multiprocessing as mp
import resource
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

from rich.progress import Progress

from tests.fuzz.mutated_models import mutated, seeds
from tilewright.frontend.onnx.load import OnnxModel
from tilewright.support.errors import MultipleProgramsError, UserError

SECONDS = 20.0  # for one file
_START_SECONDS = 600.0  # for a child to get ready
MEMORY = 3 << 30  # bytes of address space that a child may take beyond what it starts with


def outcome(data: bytes) -> str:
    """ "imported", "refused", or what was raised that should not have been."""
    try:
        with OnnxModel(data) as model:
            try:
                model.whole({})
            except MultipleProgramsError:
                model.first_stage({})
    except UserError:
        return "refused"
    except Exception as e:
        at = traceback.extract_tb(e.__traceback__)[-1]
        return f"{type(e).__name__} in {Path(at.filename).name}:{at.lineno}: {str(e)[:200]}"
    return "imported"


def _work(pipe: Connection, first: int, last: int, step: int) -> None:
    """Numbers go to the pipe before a file is tried, and outcomes after."""
    seeds()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    sys.stderr = open("/dev/null", "w")  # noqa: SIM115
    for number in range(first, last, step):
        pipe.send((number, ""))
        pipe.send((number, outcome(mutated(number))))
    pipe.send((last, "done"))


@dataclass
class _Child:
    last: int
    step: int
    at: int
    since: float = 0.0
    process: mp.Process = field(init=False)
    pipe: Connection = field(init=False)

    @property
    def is_late(self) -> bool:
        return time.monotonic() - self.since > SECONDS

    def start(self) -> None:
        ours, theirs = mp.Pipe(duplex=False)
        self.process = mp.Process(target=_work, args=(theirs, self.at, self.last, self.step), daemon=True)
        self.process.start()
        theirs.close()
        self.pipe, self.since = ours, time.monotonic() + _START_SECONDS  # it makes its seeds first


def campaign(first: int, files: int, folder: Path, workers: int = 2) -> tuple[Counter[str], dict[int, str]]:
    """How often each outcome came, and what failed, by number."""
    counts: Counter[str] = Counter()
    failures: dict[int, str] = {}
    children = [_Child(first + files, workers, first + k) for k in range(workers)]
    for child in children:
        child.start()

    def note(child: _Child, result: str) -> None:
        counts[result if result in ("imported", "refused") else "failed"] += 1
        if result not in ("imported", "refused"):
            failures[child.at] = result
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{child.at}.onnx").write_bytes(mutated(child.at))

    with Progress() as progress:
        task = progress.add_task("files", total=files)

        def finish(child: _Child, result: str) -> None:
            note(child, result)
            progress.advance(task)
            child.at += child.step

        while children:
            ready = wait([c.pipe for c in children], timeout=1.0)
            for child in list(children):
                problem = f"not done after {SECONDS:.0f} s" if child.is_late else ""
                try:
                    while child.pipe in ready and child.pipe.poll():
                        problem = ""
                        child.at, result = child.pipe.recv()
                        child.since = time.monotonic()
                        if result == "done":
                            children.remove(child)
                            break
                        if result:
                            finish(child, result)
                except EOFError:
                    child.process.join()
                    problem = f"the process ended with {child.process.exitcode}"
                if problem:
                    child.process.kill()
                    child.process.join()
                    finish(child, problem)
                    child.start()
    return counts, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("fuzz-failures"))
    args = parser.parse_args()
    counts, failures = campaign(args.first, args.files, args.folder)
    for number, reason in sorted(failures.items()):
        print(f"{number}: {reason}")
    print(", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
