"""What quantising asks of the compiler: sessions of models in memory, for the shapes of samples."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from onnx import ModelProto

from tilewright.runtime.open_session import OpenSession
from tilewright.runtime.session import Session
from tilewright.sessions.dynamic import DynamicSession
from tilewright.support.arrays import Array

InputSample: TypeAlias = Mapping[str, Array]  # the model's inputs by name
LoadModel: TypeAlias = Callable[[ModelProto], Session | DynamicSession | OpenSession]
