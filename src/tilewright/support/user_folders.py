"""Where programs keep files for a user, by the XDG Base Directory Specification."""

import os
import pwd
from pathlib import Path


def user_folder(variable: str, default: str) -> Path | None:
    """`$variable`, or `default` in the user's home; None if there is no home. Relative paths are ignored, as the
    specification says: they would name another folder wherever a program is started.
    """
    given = os.environ.get(variable, "")
    if os.path.isabs(given):
        return Path(given)
    home = os.environ.get("HOME", "")
    if not os.path.isabs(home):
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:  # a user without an entry, as in some containers
            return None
    return Path(home, default) if os.path.isabs(home) else None
