"""The kinds of arrays that closed forms over many candidates are made of."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
