"""Do the loops around a block run each point of a box of its iterators exactly once?

    v = i*8 + j                        for j < 8: one to one onto 0 … 8·I-1
    v = i // 4, w = i % 4              one to one, where 4 divides the extent of i
    v = (i*6 + j) // 4, w = (i*6 + j) % 4      the digits of a fused pair
    v = i, w = 2*i                     not: both move with i, so only a diagonal is run
    v = i*4 + j  where i*4 + j < 10    one to one onto 0 … 9: the predicate cuts what the split runs too far

Every value is brought to `base + Σ scale·digit`, where a digit is `(source // lower) % extent` and a source is a loop
or a sum that is a number in mixed radix itself (a *fuse*: each scale is the product of the extents below it). Then two
things are asked. Each value must be a number in mixed radix without gaps, so that it takes all values of an
interval. The digits of each source must tile it without gap or overlap (a *split*), so that values are independent of
each other and tell every loop apart. Conditions that bound a source (`i1*3 + j < 4`, the remainder of an inner split)
shorten it; those that keep a value inside its domain cut its interval; no others are allowed.

The answer is exact where it is a box. `Unrecognised` means that the pattern is not one of these: `points.py` then
decides by counting, for domains that are small enough.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import Binary, BinaryOp, Const, Expr, Var, free_vars, walk
from tilewright.ir.simplify import Linear, Simplifier
from tilewright.tir.analysis.regions import LinearTerms, Span
from tilewright.tir.printer import print_expr


class Image(NamedTuple):
    """What the values run over: per value a span, over the variables that are fixed. `cut` tells where a condition
    keeps a span, whose place is not known, inside the domain.
    """

    spans: tuple[Span, ...]
    cut: tuple[bool, ...]

    def is_whole(self, domain: Sequence[int]) -> bool:
        """Is it the whole domain?"""
        return all(self.fills(n, extent) for n, extent in enumerate(domain))

    def fills(self, dim: int, extent: int) -> bool:
        """Is the whole domain of this one value run?"""
        span = self.spans[dim]
        return isinstance(span.min, Const) and span.min.value == 0 and span.extent == extent


class Unrecognised(NamedTuple):
    reason: str


class _NotRecognised(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def image(
    values: Sequence[Expr],
    domain: Sequence[int],
    conditions: Sequence[Expr],
    ranging: Mapping[Var, int],
    simplify: Simplifier,
) -> Image | Unrecognised:
    """The box onto which `ranging` (loops and their extents) are mapped one to one by `values`, as far as `conditions`
    hold and the other variables are fixed.
    """
    try:
        return _Recognition(ranging, simplify).image(values, domain, conditions)
    except _NotRecognised as e:
        return Unrecognised(e.reason)


class _Digit(NamedTuple):
    """(source // lower) % extent."""

    source: Expr
    lower: int
    extent: int


class _Part(NamedTuple):
    scale: int
    digit: _Digit


class _Form(NamedTuple):
    base: Linear  # over fixed variables
    moving: LinearTerms


class _Bound(NamedTuple):
    """low <= Σ moving + fixed <= high."""

    moving: LinearTerms
    fixed: Linear
    low: int | None
    high: int | None
    text: str


class _Recognition:
    def __init__(self, ranging: Mapping[Var, int], simplify: Simplifier) -> None:
        self._simplify = simplify
        self._loops = {v: n for v, n in ranging.items() if n != 1}
        self._extents: dict[Expr, int] = {**self._loops}  # of sources
        self._parts: dict[Expr, list[_Part]] = {}  # of sources that are sums
        self._shortened: list[
            tuple[LinearTerms, Expr]
        ] = []  # sums that a condition bounds, smaller ones first

    def image(self, values: Sequence[Expr], domain: Sequence[int], conditions: Sequence[Expr]) -> Image:
        forms = [self._form(self._simplify.linear(v)) for v in values]
        known = {f.moving for f in forms}
        cuts: list[_Bound] = []
        shorter: list[_Bound] = []
        for c in conditions:
            b = self._bound(c)
            if b is None:
                continue
            if not b.moving or b.moving in known:
                cuts.append(b)
            else:
                shorter.append(self._dividend(b))
        for b in sorted(shorter, key=_size):
            self._shorten(b)
        spans: list[Span] = []
        cut: list[bool] = []
        used: list[_Digit] = []
        for value, form, extent in zip(values, forms, domain, strict=True):
            parts, offset = self._sum(form.moving)
            length = self._radix(parts, value)
            used += [p.digit for p in parts]
            start = Linear(form.base.const + offset, form.base.terms)
            mine = [b for b in cuts if b.moving == form.moving]
            span, is_cut = self._cut(value, form, start, length, extent, mine)
            spans.append(span)
            cut.append(is_cut)
        self._tile(used)
        return Image(tuple(spans), tuple(cut))

    # ------------------------------------------------------------------------------------------------- normal form

    def _form(self, form: Linear) -> _Form:
        moving: list[tuple[Expr, int]] = []
        fixed: list[tuple[Expr, int]] = []
        for term in form.terms:
            names = free_vars(term[0])
            if names.isdisjoint(self._loops):
                fixed.append(term)
            elif names <= self._loops.keys():
                moving.append(term)
            else:
                _fail(f"{print_expr(term[0])} mixes loops that move the block with loops that repeat it")
        return _Form(Linear(form.const, tuple(fixed)), tuple(moving))

    def _sum(self, terms: LinearTerms) -> tuple[list[_Part], int]:
        """The digits of a sum, smallest scale first, and what turning falling digits round adds."""
        left = dict(terms)
        atoms: list[tuple[Expr, int]] = []
        for inner, source in reversed(self._shortened):
            scale, rest = divmod(left.get(inner[0][0], 0), inner[0][1])
            if scale and not rest and all(left.get(a) == k * scale for a, k in inner):
                for a, _ in inner:
                    del left[a]
                atoms.append((source, scale))
        atoms += left.items()
        offset = 0
        parts: list[_Part] = []
        for atom, scale in atoms:
            digit = self._digit(atom)
            if scale < 0:  # -k·d  is  k·(n-1 - d) - k·(n-1): counting down is one to one too
                offset += scale * (digit.extent - 1)
            parts.append(_Part(abs(scale), digit))
        return sorted(parts, key=lambda p: p.scale), offset

    def _digit(self, atom: Expr) -> _Digit:
        if atom in self._extents:
            return _Digit(atom, 1, self._extents[atom])
        node, lower, extent = atom, 1, 0
        remainder = _taken(node, BinaryOp.MOD)
        if remainder is not None:
            node, extent = remainder
        quotient = _taken(node, BinaryOp.FLOORDIV)
        if quotient is not None:
            node, lower = quotient
            remainder = _taken(node, BinaryOp.MOD)
            if extent == 0 and remainder is not None:  # (x % m) // c  is  (x // c) % (m / c)
                node, modulus = remainder
                if modulus % lower:
                    _fail(f"{print_expr(atom)}: {lower} does not divide {modulus}")
                extent = modulus // lower
        if node is atom:
            _fail(f"{print_expr(atom)} is not quasi-affine")
        source = self._source(node)
        rest = -(-self._extents[source] // lower)
        return _Digit(source, lower, min(extent, rest) if extent else rest)

    def _source(self, e: Expr) -> Expr:
        """`e` as a source: a loop, or a sum that runs from 0 without gaps."""
        if e in self._extents:
            return e
        form = self._simplify.linear(e)
        parts, offset = self._sum(form.terms)
        if form.const + offset:
            _fail(f"{print_expr(e)}, of which a digit is taken, does not start at 0")
        self._extents[e] = self._radix(parts, e)
        self._parts[e] = parts
        return e

    def _radix(self, parts: Sequence[_Part], of: Expr) -> int:
        """The number of values of a sum without gaps or repetitions."""
        length = 1
        for scale, digit in parts:
            if scale != length:
                what = "skips values" if scale > length else "repeats values"
                _fail(f"{print_expr(of)} {what}: below the scale {scale} it runs over {length}")
            length *= digit.extent
        return length

    # -------------------------------------------------------------------------------------------------- conditions

    def _bound(self, condition: Expr) -> _Bound | None:
        """What a condition says; None if it always holds."""
        c = self._simplify(condition)
        if isinstance(c, Const):
            if c.value:
                return None
            _fail("it never runs")
        if not isinstance(c, Binary) or c.op not in (BinaryOp.LT, BinaryOp.LE) or c.a.dtype is not INDEX:
            if free_vars(c).isdisjoint(self._loops):
                return None  # it decides whether the block runs, not over what
            _fail(f"the condition {print_expr(c)} is no bound of a sum of loops")
        strict = int(c.op is BinaryOp.LT)
        split = self._form(self._simplify.linear(c.a - c.b))
        if all(k < 0 for _, k in split.moving or split.base.terms):  # -x - f < 0  is  x + f >= 1
            moving = tuple((a, -k) for a, k in split.moving)
            return _Bound(moving, _negated(split.base), strict, None, print_expr(c))
        return _Bound(split.moving, split.base, None, -strict, print_expr(c))

    def _dividend(self, b: _Bound) -> _Bound:
        """x // c < n  is  x < n·c."""
        if len(b.moving) == 1 and b.moving[0][1] == 1 and not b.fixed.terms and b.high is not None:
            quotient = _taken(b.moving[0][0], BinaryOp.FLOORDIV)
            if quotient is not None:
                inner = self._simplify.linear(quotient[0])
                limit = (b.high - b.fixed.const + 1) * quotient[1]
                return _Bound(inner.terms, Linear(inner.const, ()), None, limit - 1, b.text)
        return b

    def _shorten(self, b: _Bound) -> None:
        """A condition bounds a sum that is not a whole value: from there on the sum is a source of its own."""
        if b.fixed.terms or b.high is None:
            _fail(f"the condition {b.text} is not one that keeps an iterator in its domain")
        limit = max(b.high - b.fixed.const + 1, 0)
        source = self._simplify.expr(Linear(0, b.moving))
        if source in self._extents:
            self._extents[source] = min(self._extents[source], limit)
            return
        parts, offset = self._sum(b.moving)
        if offset:
            _fail(f"the condition {b.text} bounds a sum that counts down")
        self._extents[source] = min(self._radix(parts, source), limit)
        self._parts[source] = parts
        self._shortened.append((b.moving, source))

    def _cut(
        self, value: Expr, form: _Form, start: Linear, length: int, extent: int, bounds: Sequence[_Bound]
    ) -> tuple[Span, bool]:
        """The interval of one value after its conditions, which must keep it in 0 … extent-1."""
        below, above = False, False  # is the domain's end kept by a condition?
        lo, hi = 0, length - 1  # of what runs beyond `start`
        for b in bounds:
            if b.fixed.terms == form.base.terms:  # a bound of the value itself
                shift = form.base.const - b.fixed.const
                if b.low is not None:
                    below = below or b.low + shift == 0
                    if not start.terms:
                        lo = max(lo, b.low + shift - start.const)
                    elif b.low + shift != 0:
                        _fail(f"the condition {b.text} is not one that keeps an iterator in its domain")
                if b.high is not None:
                    above = above or b.high + shift == extent - 1
                    if not start.terms:
                        hi = min(hi, b.high + shift - start.const)
                    elif b.high + shift != extent - 1:
                        _fail(f"the condition {b.text} is not one that keeps an iterator in its domain")
            elif b.moving:
                _fail(f"the condition {b.text} is not one that keeps an iterator in its domain")
        count = max(hi - lo + 1, 0)
        first = self._simplify.expr(Linear(start.const + lo, start.terms))
        ends = self._simplify.bounds(first)
        if count and ((ends.lo < 0 and not below) or (ends.hi + count > extent and not above)):
            _fail(f"{print_expr(value)} leaves the domain 0 … {extent - 1}")
        return Span(first, count), bool(start.terms) and (below or above)

    # ------------------------------------------------------------------------------------------------------- tiling

    def _tile(self, used: list[_Digit]) -> None:
        """The digits in use tile their sources; so do those that make up a source in use."""
        waiting: dict[Expr, list[_Digit]] = {}
        for d in used:
            waiting.setdefault(d.source, []).append(d)
        tiled: set[Expr] = set()
        while waiting:
            source = max(waiting, key=_weight)  # larger sums first: they add digits of smaller ones
            lower = 1
            for d in sorted(waiting.pop(source)):
                if d.lower != lower:
                    what = "are used twice" if d.lower < lower else "are not used"
                    _fail(f"parts of {print_expr(source)} {what}: iterators are not independent")
                lower *= d.extent
            if lower != self._extents[source]:
                if lower < self._extents[source]:
                    _fail(f"a part of {print_expr(source)} feeds no iterator: instances are repeated")
                _fail(f"the extent {self._extents[source]} of {print_expr(source)} is not divided evenly")
            for p in self._parts.get(source, ()):
                waiting.setdefault(p.digit.source, []).append(p.digit)
            tiled.add(source)
        for var in self._loops:
            if var not in tiled:
                _fail(f"the loop {var.name} feeds no iterator: instances are repeated")
        for _, source in self._shortened:
            if source not in tiled:
                _fail(f"a condition on {print_expr(source)} is not one that keeps an iterator in its domain")


def _size(b: _Bound) -> int:
    return len(b.moving)


def _weight(e: Expr) -> int:
    return sum(1 for _ in walk(e))


def _negated(form: Linear) -> Linear:
    return Linear(-form.const, tuple((a, -k) for a, k in form.terms))


def _taken(e: Expr, op: BinaryOp) -> tuple[Expr, int] | None:
    """x and c of `x // c` or `x % c`."""
    if isinstance(e, Binary) and e.op is op and isinstance(e.b, Const) and int(e.b.value) > 0:
        return e.a, int(e.b.value)
    return None


def _fail(reason: str) -> NoReturn:
    raise _NotRecognised(reason)
