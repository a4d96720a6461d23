"""What a session tells of its model: inputs, outputs and metadata."""

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ort.wire import WireModel, WireValue


class NodeArg:
    """An input or output: its name, its type as ONNX Runtime writes it (`tensor(float)`), and its shape: extents, names
    of open dimensions, None for those without a name. What has no shape, or none that is known, has an empty one.
    """

    __slots__ = ("name", "shape", "type")

    def __init__(self, name: str, type: str, shape: list[int | str | None]) -> None:
        self.name, self.type, self.shape = name, type, shape

    def __repr__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape!r})"


@dataclass(slots=True)
class ModelMetadata:
    """Who made the model, and what they say of it."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


def metadata_of(model: WireModel) -> ModelMetadata:
    return ModelMetadata(
        model.texts.get(2, ""),
        model.graph_texts.get(2, ""),
        model.texts.get(4, ""),
        model.texts.get(6, ""),
        model.graph_texts.get(10, ""),
        model.version,
        dict(model.properties),
    )


def node_arg(
    value: WireValue, by_name: Mapping[str, int], by_denotation: Mapping[str, int]
) -> tuple[NodeArg, bool]:
    """An input as callers see it, with dimensions that they have fixed; and whether there are such."""
    shape: list[int | str | None] = []
    is_fixed = False
    for dim in value.dims or ():
        fixed = by_name.get(dim.name) if dim.name else None
        if fixed is None and dim.denotation and dim.value is None:
            fixed = by_denotation.get(dim.denotation)
        is_fixed |= fixed is not None
        extent = dim.value if dim.value is not None and dim.value >= 0 else None
        shape.append(fixed if fixed is not None else extent if extent is not None else dim.name or None)
    return NodeArg(value.name, value.type, shape), is_fixed
