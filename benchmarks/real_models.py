"""Published networks: the manifest `real_models.toml` as values.

A network is a file inside an archive of a registry, pinned by version and digest. Its inputs have shapes of numbers and
of names of dimensions; `sizes` are the values of these, of which the first is what engines are timed at. Inputs are
filled with numbers that depend on nothing but the sizes: `normal`, `uniform` from 0 to 1, `zeros`, `integers` from
`least` to `most`, the size of a `dim`, or a `page` of dark marks on white: a network that looks for text gives nothing
but rounding errors where there is none, and these cannot be compared.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.support.errors import UserError

MANIFEST = Path(__file__).with_suffix(".toml")
REGISTRIES = ("pypi", "npm")
FILLS = ("normal", "uniform", "zeros", "integers", "dim", "page")
TOLERANCE = 1e-4  # largest error of ours, of the largest output, unless the manifest says otherwise
LINE, LETTER = 24, 8  # pixels from a line of a page to the next, and from a letter to the next
_MARK = (14, 5)  # pixels of a letter
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_DIGEST = re.compile(r"[0-9a-f]{64}")

Sizes: TypeAlias = Mapping[str, int]
Feeds: TypeAlias = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class InputRule:
    """How an input is made up; `shape` has numbers and names of dimensions."""

    name: str
    shape: tuple[int | str, ...]
    fill: str
    least: int = 0
    most: int = 0
    dim: str = ""

    def shape_at(self, sizes: Sizes) -> tuple[int, ...]:
        return tuple(sizes[n] if isinstance(n, str) else n for n in self.shape)

    def array(self, sizes: Sizes, dtype: str, rng: np.random.Generator) -> NDArray[Any]:
        shape = self.shape_at(sizes)
        match self.fill:
            case "normal":
                return rng.standard_normal(shape).astype(dtype)
            case "uniform":
                return rng.random(shape).astype(dtype)
            case "integers":
                return rng.integers(self.least, self.most, shape, endpoint=True).astype(dtype)
            case "page":
                return _page(shape, rng).astype(dtype)
            case "dim":
                return np.full(shape, sizes[self.dim], dtype)
            case _:
                return np.zeros(shape, dtype)


def _page(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float32]:
    """Lines of letters, each of which is a mark of dots, on the last two axes: -1 is black and 1 is white."""
    page = np.ones(shape[-2:], np.float32)
    tall, wide = _MARK
    for y in range(LETTER, page.shape[0] - tall, LINE):
        for x in range(LETTER, page.shape[1] - wide, LETTER):
            page[y : y + tall, x : x + wide] = np.where(rng.random(_MARK) < 0.5, -1, 1)
    return np.broadcast_to(page, shape)


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """`path` is that of the file inside of the archive; `tolerance` is what our results may be off, of the largest
    output (more for networks of integers, in which a tie may round either way). Engines are given a copy of the file
    with fixed sizes, unless it is not `fixed`: a branch that is not taken may not allow them.
    """

    name: str
    what: str
    registry: str
    package: str
    version: str
    path: str
    sha256: str
    licence: str
    inputs: tuple[InputRule, ...]
    sizes: tuple[Sizes, ...] = ({},)
    tolerance: float = TOLERANCE
    fixed: bool = True

    @property
    def source(self) -> str:
        return f"{self.package} {self.version} ({self.registry})"

    @property
    def is_open(self) -> bool:
        """Is it run at several sizes?"""
        return len(self.sizes) > 1

    def feeds(self, sizes: Sizes, dtypes: Mapping[str, str]) -> Feeds:
        """Inputs by name; `dtypes` are those that the file says."""
        rng = np.random.default_rng(list(sizes.values()))
        return {i.name: i.array(sizes, dtypes[i.name], rng) for i in self.inputs}


def read_manifest(path: Path = MANIFEST) -> dict[str, PublishedModel]:
    """The networks by name."""
    with open(path, "rb") as file:
        rows: list[dict[str, Any]] = tomllib.load(file)["model"]
    models = [_model(row) for row in rows]
    found = {m.name: m for m in models}
    digests = {m.sha256 for m in models}
    if len(found) != len(models) or len(digests) != len(models):
        raise UserError("the manifest has a network twice, by name or by digest", where=str(path.name))
    return found


def select(models: Mapping[str, PublishedModel], names: Sequence[str]) -> list[PublishedModel]:
    """Those of these names; all if there are none."""
    for name in names:
        if name not in models:
            raise UserError(f"there is no network {name!r}", hint=f"there are: {', '.join(models)}")
    return [models[n] for n in names or models]


def _model(row: Mapping[str, Any]) -> PublishedModel:
    where = f"{MANIFEST.name}: {row.get('name')}"
    try:
        inputs = tuple(_rule(i) for i in row["inputs"])
        rest = {k: v for k, v in row.items() if k not in ("inputs", "sizes")}
        model = PublishedModel(**rest, inputs=inputs, sizes=tuple(row.get("sizes", ({},))))
    except (TypeError, KeyError) as e:
        raise UserError(f"a network of the manifest has a field too many or too few: {e}", where=where) from e
    _check(model, where)
    return model


def _rule(row: Mapping[str, Any]) -> InputRule:
    rest = {k: v for k, v in row.items() if k != "shape"}
    return InputRule(**rest, shape=tuple(row["shape"]))


def _check(model: PublishedModel, where: str) -> None:
    if not _NAME.fullmatch(model.name) or not _DIGEST.fullmatch(model.sha256):
        raise UserError("a network has a name or a digest that is none", where=where)
    if model.registry not in REGISTRIES:
        raise UserError(f"{model.registry!r} is none of {', '.join(REGISTRIES)}", where=where)
    dims = {n for i in model.inputs for n in i.shape if isinstance(n, str)}
    for sizes in model.sizes:
        if set(sizes) != dims:
            raise UserError(f"sizes are of {sorted(sizes)}, dimensions of {sorted(dims)}", where=where)
    for rule in model.inputs:
        if rule.fill not in FILLS or (rule.fill == "dim" and rule.dim not in dims):
            raise UserError(f"input {rule.name!r} is filled with what is not known", where=where)
