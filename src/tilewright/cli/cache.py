"""`tilewright cache`: what is kept of earlier compilations, and how it is removed."""

from pathlib import Path

import click

from tilewright.cli.output import megabytes, print_json, print_table
from tilewright.cli.status import ExitStatus
from tilewright.runtime.cache import default_cache
from tilewright.runtime.cache_contents import clear, contents
from tilewright.support.errors import UserError


def show_cache(as_json: bool) -> None:
    cache = default_cache()
    kinds = [] if cache.folder is None else contents(cache.folder)
    size = sum(k.size for k in kinds)
    why = "it is turned off" if cache.folder is None else cache.why_unused()
    if as_json:
        print_json(
            {
                "folder": None if cache.folder is None else str(cache.folder),
                "unused_because": why,
                "bytes": size,
                "limit_bytes": cache.capacity,
                "kinds": [
                    {
                        "name": k.name,
                        "files": k.files,
                        "bytes": k.size,
                        "oldest_seconds": k.oldest,
                        "newest_seconds": k.newest,
                    }
                    for k in kinds
                ],
            }
        )
        return
    if cache.folder is not None:
        print_table(
            ("kind", "files", "size", "last used", "longest unused"),
            [(k.name, k.files, megabytes(k.size), _age(k.newest), _age(k.oldest)) for k in kinds],
        )
        click.echo(f"\n{cache.folder}: {megabytes(size)} of {megabytes(cache.capacity)}")
    if why is not None:
        click.echo(f"the cache is not used: {why}")


def clear_cache(age: float, yes: bool, as_json: bool) -> int:
    folder = _folder()
    if not yes:
        kinds = contents(folder)
        files, size = sum(k.files for k in kinds), sum(k.size for k in kinds)
        unused = f" what was not used for {_age(age)} of" if age else ""
        question = f"Remove{unused} {files} files ({megabytes(size)}) in {folder}?"
        if not click.confirm(question, err=True):
            click.echo("nothing was removed", err=True)
            return ExitStatus.USER_ERROR
    removed, freed = clear(folder, age)
    if as_json:
        print_json({"folder": str(folder), "files": removed, "bytes": freed})
    else:
        click.echo(f"removed {removed} files, {megabytes(freed)}")
    return ExitStatus.OK


def _folder() -> Path:
    cache = default_cache()
    if cache.folder is None:
        raise UserError("the cache is turned off", hint="TILEWRIGHT_CACHE names its folder")
    why = cache.why_unused()
    if why is not None:
        raise UserError(f"the cache is not used, and not emptied: {why}", where=str(cache.folder))
    return cache.folder


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"
