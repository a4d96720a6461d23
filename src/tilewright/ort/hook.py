"""Makes `import onnxruntime` give `tilewright.ort`, for programs that nobody edits.

A finder that comes before all others answers for `onnxruntime` and the few of its modules that we stand for. The search
path of our package is the real one's, if that is installed, so that its other modules (`onnxruntime.quantization`,
`onnxruntime.tools`) are found as ever. Where it is not, metadata of a distribution `onnxruntime` is made up, for
programs that ask for its version.
"""

import importlib.metadata
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from tilewright.ort.environment import API_VERSION
from tilewright.ort.real import NAME, is_ours, real_spec, step_aside

_CAPI = "onnxruntime.capi"
_OURS = {
    NAME: "tilewright.ort",
    _CAPI: "tilewright.ort.capi",
    f"{_CAPI}.onnxruntime_pybind11_state": "tilewright.ort.capi.onnxruntime_pybind11_state",
    f"{_CAPI}._pybind_state": "tilewright.ort.capi._pybind_state",
    f"{_CAPI}.onnxruntime_inference_collection": "tilewright.ort.capi.onnxruntime_inference_collection",
}
_KEPT = {"__getattr__", "__version__", "__doc__", "__all__"}


class OrtLoader(Loader):
    """Makes a module of another name with what one of ours has."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        source = import_module(_OURS[module.__name__])
        names = {n: v for n, v in vars(source).items() if n in _KEPT or not n.startswith("__")}
        for name in [n for n in names if f"{module.__name__}.{n}" in _OURS]:
            del names[name]  # those modules are made by their own names
        vars(module).update(names)
        vars(module).setdefault("__file__", source.__file__)
        for name in _OURS:
            parent, _, last = name.rpartition(".")
            if parent == module.__name__:
                setattr(module, last, import_module(name))


class OrtFinder(MetaPathFinder):
    """Finds ours under ONNX Runtime's names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if step_aside.is_on or fullname not in _OURS:
            return None
        spec = ModuleSpec(fullname, OrtLoader(), origin=__file__, is_package=fullname in (NAME, _CAPI))
        if spec.submodule_search_locations is not None:
            found = real_spec()
            places = list(found.submodule_search_locations or ()) if found is not None else []
            spec.submodule_search_locations = (
                places if fullname == NAME else [str(Path(p) / "capi") for p in places]
            )
        return spec

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context | None = None
    ) -> Iterable[importlib.metadata.Distribution]:
        """For `importlib.metadata.version("onnxruntime")`, where there is no such distribution."""
        asked = None if context is None else context.name
        return [OrtDistribution()] if asked == NAME and real_spec() is None else []


class OrtDistribution(importlib.metadata.Distribution):
    """What a program may ask of an installed onnxruntime."""

    def read_text(self, filename: str) -> str | None:
        if filename == "METADATA":
            return f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {API_VERSION}\n"
        return None

    def locate_file(self, path: object) -> Path:
        return Path(__file__).parent / str(path)


def install() -> None:
    """From now on `import onnxruntime` gives ours. Modules that have imported the real one keep it."""
    if any(isinstance(f, OrtFinder) for f in sys.meta_path):
        return
    loaded = sys.modules.get(NAME)
    if loaded is not None and not is_ours(loaded):
        import_module("tilewright.ort.real").real_onnxruntime()
        for name in [n for n in sys.modules if n == NAME or n.startswith(f"{NAME}.")]:
            del sys.modules[name]
    sys.meta_path.insert(0, OrtFinder())
