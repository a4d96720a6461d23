"""Import this to make the package known: what an entry point or TILEWRIGHT_EXTENSIONS names."""

from toy_extension import register

register()
