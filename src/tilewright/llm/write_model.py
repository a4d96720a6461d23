"""A decoder as an ONNX model: its nodes in one file, its weights in another, which is written as they are read.

    input_ids [1, sequence], past.N.key and past.N.value [1, kv heads, past, head size]
    logits [1, vocabulary] of the last token, present.N.key and present.N.value [1, kv heads, past + sequence, head
    size]

Products that read the same rows are one: queries, keys and values; gate and up. Attention appends to the cache
along an open axis, so a session keeps it in place. All operators are ONNX's or com.microsoft's, so that other
engines run the file too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tilewright.llm.checkpoint import DecoderWeights, tensor_shapes
from tilewright.llm.config import DecoderConfig
from tilewright.quantize.blocks import quantize_rows
from tilewright.support.errors import UserError
from tilewright.support.progress import OnProgress

OPSET = 23  # the first that has Attention with a cache
_IR = 11  # what it came with
_CONTRIB = "com.microsoft"
_ALIGNED = 4096  # where a tensor begins in the file: others map it by pages
_ROWS = 2048  # that are in memory as floats at a time


@dataclass(frozen=True, slots=True)
class Precision:
    """How weights of products and the table of embeddings are stored: in blocks of `block` numbers of `bits` bits;
    or in float32, if there are none. `table_bits` are those of a table that is not the head's too.
    """

    bits: int | None = 4
    block: int = 32
    table_bits: int = 4

    def __post_init__(self) -> None:
        fits = self.bits in (None, 4, 8) and self.table_bits in (4, 8)
        if not fits or self.block < 16 or self.block & (self.block - 1):
            raise UserError(f"weights of {self.bits} bits in blocks of {self.block}")


FLOATS = Precision(bits=None)


@dataclass(frozen=True, slots=True)
class _Stored:
    """A matrix in the file of weights: its codes and scales, where they begin; or floats, if it has no scales."""

    rows: int
    columns: int
    codes: int
    scales: int | None


def write_decoder(
    path: Path,
    config: DecoderConfig,
    weights: DecoderWeights,
    precision: Precision = Precision(),
    *,
    is_grouped: bool = False,
    progress: OnProgress | None = None,
) -> int:
    """Write the model to `path`, and its weights to a file beside it, `path` with `.data`. Returns the bytes of
    weights.

    `is_grouped`: attention is com.microsoft.GroupQueryAttention, for engines that have no other with a cache as quick.
    Such a model takes the number of tokens as inputs too.
    """
    if precision.bits is not None:
        for size in (config.hidden, config.intermediate, config.heads * config.head_size):
            if size % precision.block:
                raise UserError(f"rows of {size} weights are no whole blocks of {precision.block}")
    data = path.with_name(f"{path.name}.data")
    with data.open("wb") as file:
        writer = _Writer(config, weights, precision, file, data.name, progress)
        model = writer.model(is_grouped)
        nbytes = file.tell()
    path.write_bytes(model.SerializeToString())
    return nbytes


class _Writer:
    """Collects nodes, and writes weights as they are needed. Methods that add a node return the name of its output."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        precision: Precision,
        file: IO[bytes],
        name: str,
        progress: OnProgress | None,
    ) -> None:
        self._config, self._weights, self._precision = config, weights, precision
        self._file, self._file_name, self._progress = file, name, progress
        self._shapes = tensor_shapes(config)
        self._nodes: list[Any] = []
        self._constants: dict[str, TensorProto] = {}
        self._done = 0

    # ------------------------------------------------------------------------------------------------------ the network

    def model(self, is_grouped: bool) -> ModelProto:
        c = self._config
        self._step()
        ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "sequence"])
        inputs, outputs = [ids], [helper.make_tensor_value_info("logits", 1, [1, c.vocabulary])]
        if is_grouped:
            inputs += [
                helper.make_tensor_value_info("before", TensorProto.INT32, [1]),  # tokens but one
                helper.make_tensor_value_info("total", TensorProto.INT32, [1]),
            ]
        table = self._store(["model.embed_tokens.weight"], c.hidden, self._table_bits)
        x = self._looked_up(table)
        angles = self._angles()
        for n in range(c.layers):
            past = [f"past_key_values.{n}.{kind}" for kind in ("key", "value")]
            present = [f"present.{n}.{kind}" for kind in ("key", "value")]
            for names, length, into in ((past, "past", inputs), (present, "total_length", outputs)):
                shape = [1, c.kv_heads, length, c.head_size]
                into += [helper.make_tensor_value_info(i, 1, shape) for i in names]
            x = self._op("Add", x, self._attention(n, x, angles, past, present, is_grouped))
            x = self._op("Add", x, self._mlp(n, x))
            self._step()
        last = self._op("Gather", x, self._constant("last", np.array(-1, np.int64)), axis=1)
        last = self._norm(last, "model.norm.weight")
        head = table if c.is_tied else self._store(["lm_head.weight"], c.hidden, self._precision.bits)
        self._product(last, head, "head", self._head_bits, "", output="logits")
        self._step()
        graph = helper.make_graph(
            self._nodes, "decoder", inputs, outputs, initializer=list(self._constants.values())
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(_CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR)

    @property
    def _table_bits(self) -> int | None:
        own = self._precision
        return own.bits if own.bits is None or self._config.is_tied else own.table_bits

    @property
    def _head_bits(self) -> int | None:
        return self._table_bits if self._config.is_tied else self._precision.bits

    def _angles(self) -> tuple[str, ...]:
        """Cosines and sines for the positions of the new tokens, and where the first of them is: in a table of these
        positions alone.
        """
        frequencies = self._config.rotation.frequencies(self._config.head_size)
        zero, one, two, three = (self._constant(f"n{n}", np.array([n], np.int64)) for n in range(4))
        before = self._op("Slice", self._op("Shape", "past_key_values.0.key"), two, three)
        length = self._op("Slice", self._op("Shape", "input_ids"), one, two)
        bounds = (self._op("Squeeze", n) for n in (before, self._op("Add", before, length)))
        step = self._constant("step", np.array(1, np.int64))
        at = self._op("Cast", self._op("Range", *bounds, step), to=TensorProto.FLOAT)
        turned = self._op("Mul", self._op("Unsqueeze", at, one), self._constant("frequencies", frequencies))
        return self._op("Cos", turned), self._op("Sin", turned), zero

    def _attention(
        self,
        layer: int,
        x: str,
        angles: Sequence[str],
        past: Sequence[str],
        present: Sequence[str],
        is_grouped: bool,
    ) -> str:
        c, name = self._config, f"model.layers.{layer}.self_attn"
        width, kv_width = c.heads * c.head_size, c.kv_heads * c.head_size
        normed = self._norm(x, f"model.layers.{layer}.input_layernorm.weight")
        both = self._joined(normed, name, [("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v")])
        q, k, v = self._split(both, width, kv_width, kv_width)
        if c.has_head_norms:
            q = self._head_norm(q, c.heads, f"{name}.q_norm.weight")
            k = self._head_norm(k, c.kv_heads, f"{name}.k_norm.weight")
        cos, sin, first = angles
        q, k = (
            self._op("RotaryEmbedding", t, first, cos, sin, domain=_CONTRIB, num_heads=heads)
            for t, heads in ((q, c.heads), (k, c.kv_heads))
        )
        out = f"{name}.mixed"
        if is_grouped:
            lengths = ("before", "total")
            made = helper.make_node(
                "GroupQueryAttention",
                [q, k, v, *past, *lengths],
                [out, *present],
                domain=_CONTRIB,
                num_heads=c.heads,
                kv_num_heads=c.kv_heads,
            )
        else:
            made = helper.make_node(
                "Attention",
                [q, k, v, "", *past],
                [out, *present],
                is_causal=1,
                q_num_heads=c.heads,
                kv_num_heads=c.kv_heads,
            )
        self._nodes.append(made)
        return self._joined(out, name, [("o_proj", "o")], columns=width)

    def _mlp(self, layer: int, x: str) -> str:
        c, name = self._config, f"model.layers.{layer}.mlp"
        normed = self._norm(x, f"model.layers.{layer}.post_attention_layernorm.weight")
        both = self._joined(normed, name, [("gate_proj", "m"), ("up_proj", "m")])
        gate, up = self._split(both, c.intermediate, c.intermediate)
        gated = self._op("Mul", self._op("Mul", gate, self._op("Sigmoid", gate)), up)
        return self._joined(gated, name, [("down_proj", "m")], columns=c.intermediate)

    def _norm(self, x: str, name: str) -> str:
        gain = self._constant(name, self._vector(name, self._config.hidden))
        return self._op("SimplifiedLayerNormalization", x, gain, axis=-1, epsilon=self._config.epsilon)

    def _head_norm(self, x: str, heads: int, name: str) -> str:
        size = self._config.head_size
        gain = self._constant(name, self._vector(name, size))
        apart = self._op("Reshape", x, self._constant(f"heads{heads}", np.array([0, 0, heads, size])))
        normed = self._op("SimplifiedLayerNormalization", apart, gain, axis=-1, epsilon=self._config.epsilon)
        return self._op("Reshape", normed, self._constant("together", np.array([0, 0, -1])))

    def _joined(self, x: str, name: str, parts: Sequence[tuple[str, str]], columns: int | None = None) -> str:
        """The product with matrices of these names, whose letters say whether they have a bias, one below the other."""
        c = self._config
        stem = f"{name}.{parts[0][0]}"
        matrix = self._store(
            [f"{name}.{p}.weight" for p, _ in parts], columns or c.hidden, self._precision.bits
        )
        has_bias = [letter in c.biased for _, letter in parts]
        bias = ""
        if any(has_bias):
            rows = [self._height(f"{name}.{p}.weight") for p, _ in parts]
            vectors = [
                self._vector(f"{name}.{p}.bias", n) if has else np.zeros(n, np.float32)
                for (p, _), n, has in zip(parts, rows, has_bias, strict=True)
            ]
            bias = self._constant(f"{stem}.bias", np.concatenate(vectors))
        return self._product(x, matrix, stem, self._precision.bits, bias)

    # -------------------------------------------------------------------------------------------------------- its parts

    def _op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        output = f"{kind}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [output], domain=domain, **attributes))
        return output

    def _split(self, x: str, *sizes: int) -> list[str]:
        outputs = [f"Split_{len(self._nodes)}_{i}" for i in range(len(sizes))]
        widths = self._constant("x".join(map(str, sizes)), np.array(sizes, np.int64))
        self._nodes.append(helper.make_node("Split", [x, widths], outputs, axis=-1))
        return outputs

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(value, name)
        return name

    def _height(self, name: str) -> int:
        return self._shapes[name][0]

    def _vector(self, name: str, size: int) -> NDArray[np.float32]:
        return self._weights.read(name, 0, size)

    def _store(self, names: Sequence[str], columns: int, bits: int | None) -> _Stored:
        """Write matrices to the file, one below the other."""
        rows, begin = sum(map(self._height, names)), self._aligned()
        if bits is None:
            for part in self._parts(names):
                self._file.write(part.tobytes())
            return _Stored(rows, columns, begin, None)
        scales: list[NDArray[np.float32]] = []
        for part in self._parts(names):
            blocks = quantize_rows(part, bits, self._precision.block)
            self._file.write(blocks.codes.tobytes())
            scales.append(blocks.scales)
        at = self._aligned()
        for own in scales:
            self._file.write(own.tobytes())
        return _Stored(rows, columns, begin, at)

    def _parts(self, names: Sequence[str]) -> Iterable[NDArray[np.float32]]:
        for name in names:
            height = self._height(name)
            for start in range(0, height, _ROWS):
                yield self._weights.read(name, start, min(start + _ROWS, height))

    def _aligned(self) -> int:
        self._file.write(bytes(-self._file.tell() % _ALIGNED))
        return self._file.tell()

    def _stored(self, name: str, dtype: int, shape: Sequence[int], offset: int, nbytes: int) -> str:
        """A constant whose bytes are in the file. Several may have the same ones: the table and the head, if tied."""
        tensor = TensorProto(name=name, data_type=dtype, dims=shape, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", self._file_name), ("offset", offset), ("length", nbytes)):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, str(value)
        self._constants[name] = tensor
        return name

    def _codes(self, matrix: _Stored, name: str, bits: int, shape: Sequence[int]) -> str:
        nbytes = matrix.rows * matrix.columns * bits // 8
        return self._stored(f"{name}.codes", TensorProto.UINT8, shape, matrix.codes, nbytes)

    def _scales(self, matrix: _Stored, name: str, shape: Sequence[int]) -> str:
        assert matrix.scales is not None
        nbytes = matrix.rows * matrix.columns // self._precision.block * 4
        return self._stored(f"{name}.scales", TensorProto.FLOAT, shape, matrix.scales, nbytes)

    def _product(
        self, x: str, matrix: _Stored, name: str, bits: int | None, bias: str, output: str | None = None
    ) -> str:
        rows, columns, block = matrix.rows, matrix.columns, self._precision.block
        made = output or f"{name}.product"
        if bits is None:
            whole = self._floats(matrix, name)
            turned = self._op("Transpose", whole, perm=[1, 0])
            self._nodes.append(helper.make_node("MatMul", [x, turned], [f"{name}.sum" if bias else made]))
            if bias:
                self._nodes.append(helper.make_node("Add", [f"{name}.sum", bias], [made]))
            return made
        blocks = columns // block
        codes = self._codes(matrix, name, bits, [rows, blocks, block * bits // 8])
        scales = self._scales(matrix, name, [rows * blocks])
        inputs = [x, codes, scales, *(["", "", bias] if bias else [])]
        attributes: dict[str, Any] = {
            "K": columns,
            "N": rows,
            "bits": bits,
            "block_size": block,
            "accuracy_level": 4,
        }
        self._nodes.append(helper.make_node("MatMulNBits", inputs, [made], domain=_CONTRIB, **attributes))
        return made

    def _floats(self, matrix: _Stored, name: str) -> str:
        shape = [matrix.rows, matrix.columns]
        nbytes = 4 * matrix.rows * matrix.columns
        return self._stored(f"{name}.weights", TensorProto.FLOAT, shape, matrix.codes, nbytes)

    def _looked_up(self, table: _Stored) -> str:
        bits = self._table_bits
        if bits is None:
            return self._op("Gather", self._floats(table, "table"), "input_ids", axis=0)
        rows, columns, block = table.rows, table.columns, self._precision.block
        codes = self._codes(table, "table", bits, [rows, columns * bits // 8])
        scales = self._scales(table, "table", [rows, columns // block])
        own: dict[str, Any] = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1}
        return self._op("GatherBlockQuantized", codes, "input_ids", scales, domain=_CONTRIB, **own)

    def _step(self) -> None:
        if self._progress is not None:
            self._progress("weights", self._done, self._config.layers + 1)
        self._done += 1
