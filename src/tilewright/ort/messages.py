"""Messages, by ONNX Runtime's severities: 0 is verbose, then info, warning, error, fatal.

They go to the logger "tilewright", whose level is that of the whole process; programs that use Python's logging see
them as any other. Where nobody has set up logging, lower severities are printed to standard error, as ONNX Runtime
would.
"""

import logging
import threading

logger = logging.getLogger("tilewright")

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
WARNING = 2
_said: set[str] = set()
_lock = threading.Lock()


def set_default_logger_severity(severity: int) -> None:
    """Messages below this severity are not written."""
    if not 0 <= severity < len(_LEVELS):
        raise RuntimeError(
            f"Invalid logging severity. Valid values are 0 to {len(_LEVELS) - 1}, and it is {severity}"
        )
    logger.setLevel(_LEVELS[severity])
    _show_if_asked()


def set_default_logger_verbosity(level: int) -> None:
    """How much is said at severity 0. There is one kind of such messages."""
    if level < 0:
        raise RuntimeError(f"a verbosity is not negative, and it is {level}")


def lower_severity(severity: int) -> None:
    """A session that wants to hear more than the process gets it, and so does everybody."""
    if 0 <= severity < WARNING and logger.getEffectiveLevel() > _LEVELS[severity]:
        logger.setLevel(_LEVELS[severity])
        _show_if_asked()


def say_once(message: str, severity: int) -> None:
    """A warning, which the same process does not repeat; nothing if a session hears only worse."""
    if severity > WARNING:
        return
    with _lock:
        if message in _said:
            return
        _said.add(message)
    logger.warning("%s", message)


def _show_if_asked() -> None:
    if logger.getEffectiveLevel() < logging.WARNING and not logger.hasHandlers():
        shown = logging.StreamHandler()
        shown.setFormatter(logging.Formatter("%(asctime)s [%(levelname)s %(name)s] %(message)s"))
        logger.addHandler(shown)
