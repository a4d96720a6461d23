"""The learned models that ship with the package, at work: compiled by what they decide for.

One ranks schedules, one has seconds of kernels, which fusion adds up. The program of a model is made when it is asked
for the first time, and kept in the cache like any other. While it is made, schedules are ranked by closed forms.
`TILEWRIGHT_COST_MODEL` and `TILEWRIGHT_SECONDS_MODEL` name other files, or are `off`.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tilewright.driver.keys import file_digest, file_state, program_key
from tilewright.learned.compiled_scorer import CompiledScorer
from tilewright.learned.guarded import GuardedModel
from tilewright.learned.model_file import read_trees
from tilewright.learned.refiner import Refiner
from tilewright.ops.accuracy import DEFAULT
from tilewright.runtime import file
from tilewright.runtime.cache import Cache
from tilewright.runtime.session import Session
from tilewright.search.default import Refine, as_stated
from tilewright.support.artifact import Artifact
from tilewright.support.errors import UserError
from tilewright.target.names import resolve_target
from tilewright.target.target import Target

_log = logging.getLogger("tilewright")

OFF = "off"
_FOLDER = Path(__file__).parents[1] / "learned" / "shipped"


@dataclass(frozen=True, slots=True)
class ModelSlot:
    """What a model is for, and where it is found."""

    variable: str
    shipped: Path

    @property
    def path(self) -> Path | None:
        """Of the model in use; None if there is none."""
        given = os.environ.get(self.variable, "")
        if given == OFF:
            return None
        path = Path(given) if given else self.shipped
        return path if given or path.exists() else None


SCHEDULES_MODEL = ModelSlot("TILEWRIGHT_COST_MODEL", _FOLDER / "cost_model.onnx")
SECONDS_MODEL = ModelSlot("TILEWRIGHT_SECONDS_MODEL", _FOLDER / "seconds_model.onnx")

# Of a file, for a target, ranked by closed forms.
CompileModel: TypeAlias = Callable[[Path, Target], Artifact]


def refiner(slot: ModelSlot, cache: Cache, compile_model: CompileModel) -> Refine:
    """What has the costs of schedules: the model in use, or closed forms if there is none or it is of no use here."""
    path = slot.path
    if path is None:
        return as_stated
    key = str(path), file_state(path)
    if key not in _known:
        try:
            _known[key] = _refiner(path, cache, compile_model)
        except UserError as e:
            _log.warning("schedules are ranked by closed forms: %s", e.message)
            _known[key] = as_stated
    return _known[key]


_known: dict[tuple[str, str], Refine] = {}  # of this process, by file and state


def _refiner(path: Path, cache: Cache, compile_model: CompileModel) -> Refine:
    stored = read_trees(path)
    if not cache.is_on:  # to compile it each time would take longer than it takes to do without
        return Refiner(stored.model())
    program = _program(path, resolve_target("native"), cache, compile_model)
    scorer = CompiledScorer(Session(program, 1))
    return Refiner(GuardedModel("trees", scorer, stored.is_residual, stored.guard))


def _program(path: Path, target: Target, cache: Cache, compile_model: CompileModel) -> Artifact:
    key = program_key(file_digest(path, cache), (), None, target, DEFAULT, plugins="cost model")
    kept = cache.find_program(key)
    if kept is not None:
        try:
            return file.load_artifact(kept, blobs=cache)
        except UserError as e:
            cache.discard_program(key, e.message)
    made = compile_model(path, target)
    cache.put_program(key, file.chunks(made, with_large=False), file.blobs(made))
    return made
