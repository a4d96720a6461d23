"""The words of the language that `tw.func` reads: `grid`, `block`, `f32[…]`, `out`, `exp` and the others.

The body of a `@func` is parsed and never runs, so these do nothing. They exist so that the text is good Python (an
annotation such as `tw.f32[M, K]` is evaluated when the function is defined), so that editors and type checkers know
the names, and so that the parser can tell our `exp` from that of `math`, whatever it is called where it was imported.
"""

from dataclasses import dataclass
from typing import Any

from tilewright.ir.dtype import DType
from tilewright.support.errors import UserError


def _outside(word: str) -> UserError:
    return UserError(
        f"tw.{word} is a word of tensor programs, and means nothing outside of one",
        hint="use it in the body of a function decorated with @tw.func",
    )


@dataclass(frozen=True, slots=True)
class Word:
    """A function of the language."""

    name: str

    def __call__(self, *args: Any, **notes: Any) -> Any:
        raise _outside(self.name)


@dataclass(frozen=True, slots=True)
class TypeWord:
    """A scalar type; with extents in brackets the type of a buffer."""

    dtype: DType

    @property
    def name(self) -> str:
        return self.dtype.value

    def __getitem__(self, extents: Any) -> Any:
        """For annotations. The parser reads the text, and checks it; what is returned says it again."""
        return f"{self.dtype}[{extents}]"

    def __call__(self, number: Any) -> Any:
        """A literal of this type: `tw.f32(0.5)`."""
        raise _outside(self.name)


@dataclass(frozen=True, slots=True)
class OutWord(Word):
    """`C: tw.out(tw.f32[M, N])`: a buffer that the function writes."""

    def __call__(self, *args: Any, **notes: Any) -> Any:
        return f"out({', '.join(map(str, args))})"


# Python evaluates annotations, so `out` and the types must not raise; all others stand in the body.
out = OutWord("out")

bool_ = TypeWord(DType.BOOL)
i8, i16, i32, i64 = (TypeWord(d) for d in (DType.I8, DType.I16, DType.I32, DType.I64))
u8, u16, u32, u64 = (TypeWord(d) for d in (DType.U8, DType.U16, DType.U32, DType.U64))
f16, bf16, f32, f64 = (TypeWord(d) for d in (DType.F16, DType.BF16, DType.F32, DType.F64))

# statements
grid = Word("grid")
parallel = Word("parallel")
vectorized = Word("vectorized")
unrolled = Word("unrolled")
block = Word("block")
init = Word("init")
alloc = Word("alloc")
# inside a block
spatial = Word("spatial")
reduce = Word("reduce")
where = Word("where")
reads = Word("reads")
writes = Word("writes")
# expressions
fma = Word("fma")
select = Word("select")
cast = Word("cast")
bitcast = Word("bitcast")
exp, log, sqrt, rsqrt = Word("exp"), Word("log"), Word("sqrt"), Word("rsqrt")
exp_nonpositive, gelu_erf = Word("exp_nonpositive"), Word("gelu_erf")
tanh, sigmoid, erf, sin, cos = Word("tanh"), Word("sigmoid"), Word("erf"), Word("sin"), Word("cos")
floor, ceil, trunc = Word("floor"), Word("ceil"), Word("trunc")
# with the names of Python's own, which are read as well
abs_, round_, max_, min_, pow_ = Word("abs"), Word("round"), Word("max"), Word("min"), Word("pow")
