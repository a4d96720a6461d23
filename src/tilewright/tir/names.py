"""Names of Funcs: short enough for a table and to be typed."""

import hashlib

LONGEST = 36  # characters; the number of a phase and the digest of its code are added for a kernel
_DIGEST = 6


def short_name(name: str) -> str:
    """The name, if it is short. Otherwise the words that it begins with, and a digest of all of it: names that were
    different still are.
    """
    if len(name) <= LONGEST:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
    return f"{first_words(name, LONGEST - _DIGEST - 1)}_{digest}"


def first_words(name: str, limit: int) -> str:
    """As many of the words of `name`, which are joined by underscores, as `limit` characters have room for; a part of
    the first if it alone is longer.
    """
    if len(name) <= limit:
        return name
    cut = name[: limit + 1].rpartition("_")[0]
    return cut or name[:limit]
