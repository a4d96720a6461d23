"""How many threads a session may use."""

from tilewright.ort.options import SessionOptions

_MOST = 1024
_shared: list[int] = []  # what the process has said for sessions without threads of their own


def set_global_thread_pool_sizes(intra_op_num_threads: int, inter_op_num_threads: int = 0) -> None:
    """For sessions whose options have `use_per_session_threads` off."""
    _shared[:] = [intra_op_num_threads]


def session_threads(options: SessionOptions) -> int | None:
    """None is one for each core, as 0 is in ONNX Runtime."""
    asked = options.intra_op_num_threads
    if not options.use_per_session_threads and _shared:
        asked = _shared[0]
    return None if asked <= 0 else min(asked, _MOST)
