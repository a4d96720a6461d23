"""The exceptions that ONNX Runtime raises, by the same names and with the same opening words.

Each carries the status that ONNX Runtime has for it, so that programs that look into the text find what they know:
`[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : …`. Programs import them from
`onnxruntime.capi.onnxruntime_pybind11_state`, which `tilewright.ort.capi` stands for.
"""


class OrtError(Exception):
    """Base of them all; ONNX Runtime has none, so programs catch the others."""

    code = 1
    status = "FAIL"

    def __init__(self, message: str) -> None:
        super().__init__(f"[ONNXRuntimeError] : {self.code} : {self.status} : {message}")


class Fail(OrtError):
    """Something did not work."""


class InvalidArgument(OrtError):
    """A name, type or shape that the model does not have."""

    code, status = 2, "INVALID_ARGUMENT"


class NoSuchFile(OrtError):
    """There is no file of this name."""

    code, status = 3, "NO_SUCHFILE"


class NoModel(OrtError):
    """Nothing was loaded."""

    code, status = 4, "NO_MODEL"


class EngineError(OrtError):
    """The engine broke."""

    code, status = 5, "ENGINE_ERROR"


class RuntimeException(OrtError):
    """A run broke."""

    code, status = 6, "RUNTIME_EXCEPTION"


class InvalidProtobuf(OrtError):
    """The file is no ONNX model."""

    code, status = 7, "INVALID_PROTOBUF"


class ModelLoaded(OrtError):
    """A model was loaded already."""

    code, status = 8, "MODEL_LOADED"


class NotImplemented(OrtError):
    """Nothing here can run this."""

    code, status = 9, "NOT_IMPLEMENTED"


class InvalidGraph(OrtError):
    """The nodes of the model make no sense."""

    code, status = 10, "INVALID_GRAPH"


class EPFail(OrtError):
    """An execution provider failed."""

    code, status = 11, "EP_FAIL"


class ModelLoadCanceled(OrtError):
    """Loading was given up."""

    code, status = 12, "MODEL_LOAD_CANCELED"


class ModelRequiresCompilation(OrtError):
    """The model has to be compiled first."""

    code, status = 13, "MODEL_REQUIRES_COMPILATION"


class NotFound(OrtError):
    """What was asked for does not exist."""

    code, status = 14, "NOT_FOUND"


class DeviceReset(OrtError):
    """The device was reset."""

    code, status = 15, "DEVICE_RESET"


BY_NAME: dict[str, type[OrtError]] = {c.__name__: c for c in OrtError.__subclasses__()}


def translated(error: Exception) -> Exception:
    """An error of the real ONNX Runtime as ours of the same name; others as they are."""
    ours = BY_NAME.get(type(error).__name__)
    if ours is None or isinstance(error, OrtError):
        return error
    found = ours("")
    found.args = error.args  # its text is complete
    return found
