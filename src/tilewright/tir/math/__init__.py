"""Elementary functions as expressions of primitive operations.

Each file holds one family. A function takes an expression of type f32 or f64 and returns one of the same type, over
`+ - * /`, `Fma`, `sqrt`, `floor`, `round`, `abs`, casts, bitcasts, integer arithmetic, comparisons and `Select`. What
all of them keep to:

- No branches: both sides of a `Select` are evaluated on vectors, so both are harmless for every input.
- Nothing unspecified: no float is converted to an integer. Integers are read off the low bits of `x + 1.5·2²³`
  (`arith.round_in_bits`), which is exact and cheaper, and on NaN gives garbage that a later NaN hides.
- NaN passes through the data, not through a test: `select(x < low, low, x)` keeps a NaN, and is one `maxps`.
- Shared parts are one node. Polynomials are in Horner form: throughput counts, and there are other lanes to fill
  the latency.

Coefficients were found in two steps: a minimax fit (Remez exchange in 40-digit arithmetic, of the error that the
comment names), and then, after rounding to f32, a random walk over neighbouring floats that lowers the largest
error of the whole function, measured with its real roundings. `benchmarks/vector_math.py` measures the result.
"""
