"""Execution providers: there is one, and it answers to two names.

`CPUExecutionProvider` is what programs ask for, `TilewrightExecutionProvider` what it is. Others that ONNX Runtime
knows are ignored with a warning, as its package for CPUs does; names that nobody knows are reported as it does.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

OWN = "TilewrightExecutionProvider"
CPU = "CPUExecutionProvider"
_AVAILABLE = (OWN, CPU)
_OTHERS = (
    "NvTensorRTRTXExecutionProvider",
    "TensorrtExecutionProvider",
    "CUDAExecutionProvider",
    "MIGraphXExecutionProvider",
    "ROCMExecutionProvider",
    "OpenVINOExecutionProvider",
    "DnnlExecutionProvider",
    "VitisAIExecutionProvider",
    "QNNExecutionProvider",
    "NnapiExecutionProvider",
    "VSINPUExecutionProvider",
    "JsExecutionProvider",
    "CoreMLExecutionProvider",
    "ArmNNExecutionProvider",
    "ACLExecutionProvider",
    "DmlExecutionProvider",
    "RknpuExecutionProvider",
    "WebNNExecutionProvider",
    "WebGpuExecutionProvider",
    "XnnpackExecutionProvider",
    "CANNExecutionProvider",
    "AzureExecutionProvider",
)

_PAIRS = "'providers' values must be either strings or (string, dict) tuples."

Providers: TypeAlias = "Sequence[str | tuple[str, dict[Any, Any]]] | None"
ProviderOptions: TypeAlias = "Sequence[dict[Any, Any]] | None"


def get_available_providers() -> list[str]:
    """Those that a session can have, the first first."""
    return list(_AVAILABLE)


def get_all_providers() -> list[str]:
    """All that there are, here or in ONNX Runtime."""
    return [OWN, *_OTHERS, CPU]


def chosen_providers(
    providers: Providers, provider_options: ProviderOptions, *, may_fall_back: bool
) -> dict[str, dict[str, str]]:
    """The providers that a session gets, with their options. What makes no sense is printed, and the CPU taken, as ONNX
    Runtime does; a ValueError if falling back is not allowed.
    """
    try:
        wanted = _normalized(providers, provider_options)
        unknown = [n for n in wanted if n not in _AVAILABLE and n not in _OTHERS]
        if unknown:
            raise ValueError(f"Unknown Provider Type: {unknown[0]}")
    except ValueError as error:
        if not may_fall_back:
            raise
        print("*************** EP Error ***************")
        print(f"EP Error {error} when using {providers}")
        print(f"Falling back to {[CPU]} and retrying.")
        print("****************************************")
        wanted = {}
    found: dict[str, dict[str, str]] = {n: {} for n in wanted if n in _AVAILABLE}
    return {**found, CPU: {}}


def _normalized(providers: Providers, provider_options: ProviderOptions) -> dict[str, Mapping[str, str]]:
    if providers is None:
        return {}
    if not isinstance(providers, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError("'providers' should be a sequence.")
    pairs: list[tuple[str, Mapping[Any, Any]]] = []
    if provider_options is not None:
        if not isinstance(provider_options, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError("'provider_options' should be a sequence.")
        if len(providers) != len(provider_options):
            raise ValueError(
                "'providers' and 'provider_options' should be the same length if both are given."
            )
        if not all(isinstance(p, str) for p in providers):
            raise ValueError(
                "Only string values for 'providers' are supported if 'provider_options' is given."
            )
        if not all(isinstance(o, dict) for o in provider_options):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError("'provider_options' values must be dicts.")
        pairs = list(zip(cast("Sequence[str]", providers), provider_options, strict=True))
    else:
        for provider in cast("Sequence[Any]", providers):
            if isinstance(provider, str):
                pairs.append((provider, {}))
                continue
            if not isinstance(provider, tuple) or len(pair := cast("tuple[Any, ...]", provider)) != 2:
                raise ValueError(_PAIRS)
            if not isinstance(pair[0], str) or not isinstance(pair[1], dict):
                raise ValueError(_PAIRS)
            pairs.append((pair[0], cast("dict[Any, Any]", pair[1])))
    wanted: dict[str, Mapping[str, str]] = {}
    for name, options in pairs:
        if name not in _AVAILABLE:
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names."
                f"Available providers: '{', '.join(_AVAILABLE)}'",
                stacklevel=5,
            )
        if name in wanted:
            warnings.warn(f"Duplicate provider '{name}' encountered, ignoring.", stacklevel=5)
            continue
        wanted[name] = {str(k): str(v) for k, v in options.items()}
    return wanted
