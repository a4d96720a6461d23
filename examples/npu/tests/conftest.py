"""The package is found where it lies, if it is not installed; processes that Tilewright starts find it too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
