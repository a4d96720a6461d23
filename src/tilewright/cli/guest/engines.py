"""Other engines behind the same few methods.

    make(job, progress)   load the model with as many threads as the job says (timed as `load`)
    bind(feeds)           hand over the inputs, by name, in the model's order; not timed
    run()                 one synchronous inference: what is timed
    results()             the arrays of the last run, in the order of the model's outputs
    version

All keep float32 as it is. To add one: a class here, and a row in `cli/catalogue.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .job import Job

Array = NDArray[Any]
Progress = Callable[[str, int, int], None]


class OnnxRuntime:
    """The CPU provider with all graph optimisations; inputs and outputs are bound, so nothing is copied."""

    def __init__(self, job: Job, progress: Progress) -> None:
        onnxruntime: Any = import_module("onnxruntime")
        self.version = onnxruntime.__version__
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = job.threads, 1
        options.log_severity_level = 3
        self._values = onnxruntime.OrtValue
        self._session = onnxruntime.InferenceSession(job.model, options, providers=["CPUExecutionProvider"])

    def bind(self, feeds: dict[str, Array]) -> None:
        self._binding = self._session.io_binding()
        self._inputs = {n: self._values.ortvalue_from_numpy(v) for n, v in feeds.items()}
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for output in self._session.get_outputs():
            self._binding.bind_output(output.name, "cpu")

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding)

    def results(self) -> list[Array]:
        return self._binding.copy_outputs_to_cpu()


class OpenVino:
    """One stream, tuned for latency, in float32."""

    def __init__(self, job: Job, progress: Progress) -> None:
        openvino: Any = import_module("openvino")
        self.version = openvino.__version__.split("-")[0]
        self._openvino = openvino
        config = {
            "INFERENCE_NUM_THREADS": job.threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
        }
        self._compiled = openvino.Core().compile_model(job.model, "CPU", config)
        self._request = self._compiled.create_infer_request()

    def bind(self, feeds: dict[str, Array]) -> None:
        self._feeds = [np.ascontiguousarray(v) for v in feeds.values()]  # the request does not keep them
        for n, value in enumerate(self._feeds):
            self._request.set_input_tensor(n, self._openvino.Tensor(value, shared_memory=True))

    def run(self) -> None:
        self._request.infer()

    def results(self) -> list[Array]:
        return [t.data.copy() for t in self._request.output_tensors]


class Mnn:
    """Converted by MNN's own converter, at high precision. It has no 64-bit integers: they become 32-bit ones."""

    def __init__(self, job: Job, progress: Progress) -> None:
        # The converter itself: the command line around it would send usage data.
        tools: Any = import_module("_tools")
        nn: Any = import_module("MNN.nn")
        self._expr: Any = import_module("MNN.expr")
        self.version = version("MNN")
        converted = os.path.join(job.folder, "model.mnn")
        tools.mnnconvert(
            ["mnnconvert", "-f", "ONNX", "--modelFile", job.model, "--MNNModel", converted, "--bizCode", "x"]
        )
        if not os.path.exists(converted):
            raise RuntimeError("MNN's converter has made no model of the file")
        config = {"backend": "CPU", "numThread": job.threads, "precision": "high"}
        self._runtime = nn.create_runtime_manager((config,))
        names = [name for name, _ in job.feeds or ()]
        self._module = nn.load_module_from_file(converted, names, job.outputs, runtime_manager=self._runtime)

    def bind(self, feeds: dict[str, Array]) -> None:
        self._inputs = [self._constant(np.ascontiguousarray(v)) for v in feeds.values()]

    def _constant(self, value: Array) -> Any:
        e = self._expr
        kinds = {"float32": e.float, "int32": e.int, "uint8": e.uint8, "int8": e.int8}
        if value.dtype.name in ("int64", "bool"):
            value = value.astype(np.int32)
        if value.dtype.name not in kinds:
            raise TypeError(f"MNN takes no input of type {value.dtype}")
        return e.const(value, list(value.shape), e.NCHW, kinds[value.dtype.name])

    def run(self) -> None:
        self._outputs = self._module.onForward(self._inputs)
        for output in self._outputs:
            output.read()  # it computes when it is asked

    def results(self) -> list[Array]:
        e = self._expr
        plain = [e.convert(o, e.NCHW) if o.data_format == e.NC4HW4 else o for o in self._outputs]
        return [np.array(o.read()) for o in plain]


class Ncnn:
    """Converted by pnnx, in float32. A first dimension of one is left out, as ncnn knows no batches."""

    def __init__(self, job: Job, progress: Progress) -> None:
        ncnn: Any = import_module("ncnn")
        self.version = ncnn.__version__
        self._ncnn = ncnn
        model = os.path.join(job.folder, "model.onnx")  # pnnx writes beside its input
        os.symlink(job.model, model)
        beside = os.path.join(os.path.dirname(sys.executable), "pnnx")
        pnnx = os.environ.get("PNNX") or (beside if os.path.exists(beside) else "pnnx")
        try:
            done = subprocess.run([pnnx, model, "fp16=0"], capture_output=True, text=True, cwd=job.folder)
        except FileNotFoundError:
            raise RuntimeError("ncnn needs pnnx to read ONNX files: pip install pnnx, or set PNNX") from None
        if done.returncode != 0:
            raise RuntimeError(f"pnnx ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        self._net = ncnn.Net()
        options = self._net.opt
        options.num_threads = job.threads
        options.use_fp16_packed = options.use_fp16_storage = options.use_fp16_arithmetic = False
        options.use_bf16_storage = False
        stem = os.path.join(job.folder, "model.ncnn")
        if self._net.load_param(f"{stem}.param") or self._net.load_model(f"{stem}.bin"):
            raise RuntimeError("ncnn cannot load what pnnx has made of the model")

    def bind(self, feeds: dict[str, Array]) -> None:
        arrays = [v.astype(np.int32) if v.dtype == np.int64 else v for v in feeds.values()]
        self._feeds = [
            np.ascontiguousarray(v[0] if v.ndim > 1 and v.shape[0] == 1 else v) for v in arrays
        ]  # a Mat does not keep them
        self._inputs = [
            (n, self._ncnn.Mat(v)) for n, v in zip(self._net.input_names(), self._feeds, strict=True)
        ]
        self._names = sorted(self._net.output_names())

    def run(self) -> None:
        extractor = self._net.create_extractor()
        for name, value in self._inputs:
            extractor.input(name, value)
        found = [extractor.extract(name) for name in self._names]
        if any(code for code, _ in found):
            raise RuntimeError(f"ncnn cannot compute {self._names}")
        self._outputs = [value for _, value in found]

    def results(self) -> list[Array]:
        return [np.array(o) for o in self._outputs]


class Torch:
    """PyTorch, eager, on a module that onnx2torch makes of the file."""

    def __init__(self, job: Job, progress: Progress) -> None:
        torch: Any = import_module("torch")
        onnx2torch: Any = import_module("onnx2torch")
        self.version = torch.__version__
        self._torch = torch
        torch.set_num_threads(job.threads)
        self._module = self._prepared(onnx2torch.convert(_readable(job.model)).eval(), job)

    def _prepared(self, module: Any, job: Job) -> Any:
        return module

    def bind(self, feeds: dict[str, Array]) -> None:
        self._inputs = [self._torch.from_numpy(np.ascontiguousarray(v)) for v in feeds.values()]

    def run(self) -> None:
        with self._torch.inference_mode():
            self._outputs: Any = self._module(*self._inputs)

    def results(self) -> list[Array]:
        found: Any = self._outputs
        values: list[Any] = [found] if hasattr(found, "numpy") else list(found)
        return [value.detach().numpy() for value in values]


def _readable(path: str) -> Any:
    """onnx2torch refuses shapes that may have an extent of zero, which PyTorch's exporter allows always. It is taken
    back where a shape is constant and has none.
    """
    model: Any = import_module("onnx").load(path)
    to_array: Any = import_module("onnx.numpy_helper").to_array
    shapes = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        shape = shapes.get(node.input[1]) if node.op_type == "Reshape" else None
        if shape is not None and to_array(shape).all():
            left = [a for a in node.attribute if a.name != "allowzero"]
            del node.attribute[:]
            node.attribute.extend(left)
    return model


class Inductor(Torch):
    """torch.compile with Inductor and frozen weights; compiled in the first run."""

    def _prepared(self, module: Any, job: Job) -> Any:
        config: Any = import_module("torch._inductor.config")
        config.freezing = True
        self._fix_shapes(module, job)
        return self._torch.compile(module, backend="inductor")

    def _fix_shapes(self, module: Any, job: Job) -> None:
        """Dynamo cannot follow shapes that are tensors, even constant ones. A run on the inputs tells them."""
        shapes: Any = import_module("torch.fx.passes.shape_prop")
        inputs = [self._torch.from_numpy(np.ascontiguousarray(v)) for v in job.read_feeds().values()]
        with self._torch.no_grad():
            shapes.ShapeProp(module).propagate(*inputs)
        takes_shape = {"OnnxReshape": self._torch.reshape, "OnnxExpand": self._torch.broadcast_to}
        for node in list(module.graph.nodes):
            kind = type(module.get_submodule(node.target)).__name__ if node.op == "call_module" else ""
            if kind in takes_shape:
                with module.graph.inserting_after(node):
                    shape = tuple(node.meta["tensor_meta"].shape)
                    fixed = module.graph.call_function(takes_shape[kind], (node.args[0], shape))
                node.replace_all_uses_with(fixed)
                module.graph.erase_node(node)
        module.graph.eliminate_dead_code()
        module.recompile()

    def run(self) -> None:
        with self._torch.no_grad():  # freezing does not work in inference mode
            self._outputs: Any = self._module(*self._inputs)


class Xla:
    """XLA through JAX: the file as a function of JAX, compiled for the shapes of the inputs."""

    def __init__(self, job: Job, progress: Progress) -> None:
        os.environ["NPROC"] = str(job.threads)  # of XLA's pool, which starts with its first use
        jax: Any = import_module("jax")
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", True)  # integers stay as long as they are
        self.version = jax.__version__
        self._jax = jax
        function, weights = import_module(".xla.translate", __package__).translate(job.model)
        self._weights: Any = jax.device_put(weights)
        feeds = list(job.read_feeds().values())
        self._compiled = jax.jit(function).lower(self._weights, feeds).compile()

    def bind(self, feeds: dict[str, Array]) -> None:
        self._inputs: Any = self._jax.device_put(list(feeds.values()))

    def run(self) -> None:
        self._outputs: Any = self._jax.block_until_ready(self._compiled(self._weights, self._inputs))

    def results(self) -> list[Array]:
        return [np.asarray(value) for value in self._outputs]


class Tvm:
    """Apache TVM's Relax, untuned (its `zero` pipeline), for this processor and the shapes of the inputs."""

    def __init__(self, job: Job, progress: Progress) -> None:
        os.environ["TVM_NUM_THREADS"] = str(job.threads)  # of its pool, which starts with its first use
        tvm: Any = import_module("tvm")
        relax: Any = import_module("tvm.relax")
        self.version = tvm.__version__
        self._tvm = tvm
        shapes = {name: list(value.shape) for name, value in job.read_feeds().items()}
        model = import_module("onnx").load(job.model)
        importer: Any = import_module("tvm.relax.frontend.onnx")
        module = importer.from_onnx(model, shape_dict=shapes, keep_params_in_input=False)
        processor = tvm.get_global_func("target.llvm_get_system_cpu")()
        target = tvm.target.Target({"kind": "llvm", "mcpu": processor, "num-cores": job.threads})
        with target:
            program = tvm.compile(relax.get_pipeline("zero")(module), target=target)
        self._main = relax.VirtualMachine(program, tvm.cpu())["main"]

    def bind(self, feeds: dict[str, Array]) -> None:
        self._inputs = [self._tvm.runtime.tensor(np.ascontiguousarray(v)) for v in feeds.values()]

    def run(self) -> None:
        self._outputs: Any = self._main(*self._inputs)

    def results(self) -> list[Array]:
        found = self._outputs
        return [value.numpy() for value in ([found] if hasattr(found, "numpy") else found)]
