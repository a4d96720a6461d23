"""The layout that a register tile reads B in, where B is made by the Func itself."""

from tilewright.families.gemm.recipe import Contraction
from tilewright.families.inline import consumers
from tilewright.ir.expr import Const, Var
from tilewright.ir.layout import Layout, ReorderDims, SplitDim
from tilewright.schedule.draft import Draft
from tilewright.schedule.steps.transform_layout import TransformLayout


def lay_out_panels(s: Draft, c: Contraction, width: int) -> None:
    """Store B in panels [batch, column panel, k…, width], if it is made here for this contraction alone."""
    b = c.b
    if b.buffer not in s.func.locals or len(consumers(s.func, b.buffer)) > 1:
        return
    column, reduce = c.cols[-1].var, {it.var for it in c.reduce}
    if b.indices[-1] is not column or not all(isinstance(i, Var | Const) for i in b.indices):
        return
    at = len(b.indices) - 1
    walked = [d for d, i in enumerate(b.indices) if i in reduce]
    rest = [d for d in range(at) if d not in walked]
    layout = Layout((SplitDim(at, width), ReorderDims((*rest, at, *walked, at + 1))))
    s.apply(TransformLayout(b.buffer.name, layout))
