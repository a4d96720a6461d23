"""An emulated int8 NPU, brought to Tilewright from outside as an accelerator vendor would.

The hardware: `machine` (sizes and speeds), `isa` (instructions), `timeline` (when they run), `emulator` (what they do),
`report` (what a run took). The vendor's software: `tiling`, `tiler`, `layer_code` and `emitter` make programs;
`constants`, `image` and `driver` load and run them. The bridge to Tilewright: `layers` (what is taken), `calibration`,
`lowering` and `plugin`; and `intrinsic`, which tells its scheduler of the array.
"""

from tilewright_npu.report import Report, forget_reports, reports

__all__ = ["Report", "forget_reports", "reports"]
