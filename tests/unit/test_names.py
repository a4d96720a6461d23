"""A public name means one thing: it is defined once in the package, so that a search for it finds what is meant."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "tilewright"

# What has a name of its own in the field in two places, which never meet in one file.
EXCEPTIONS = {
    "Split": "ONNX's operator, and the step on loops",
    "Cast": "ONNX's operator, and the expression that it computes",
    "If": "ONNX's operator, and the statement",
    "main": "where a process begins",
}


def public_names(tree: ast.Module) -> Iterator[str]:
    """Of classes, functions and type aliases. Words of the script language (`tir/words.py`) are none of these."""
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found = name
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
                found = name
            case ast.Assign(targets=[ast.Name(id=name)]) if not name.isupper() and name[:1].isupper():
                found = name
            case _:
                continue
        if not found.startswith("_"):
            yield found


def definitions() -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in public_names(ast.parse(path.read_text(encoding="utf-8"))):
            found[name].append(str(path.relative_to(PACKAGE)))
    return dict(found)


def test_a_public_name_has_one_definition() -> None:
    several = {name: places for name, places in definitions().items() if len(places) > 1}
    for name in EXCEPTIONS:
        assert name in several, f"{name} has one definition: it is no exception any more"
    for name in several.keys() - EXCEPTIONS.keys():
        places = ", ".join(several[name])
        raise AssertionError(f"{name} is defined in {places}: call each what it is, or share one")


def test_exceptions_stay_few() -> None:
    assert len(EXCEPTIONS) <= 5


def test_names_are_collected_from_classes_functions_and_aliases() -> None:
    text = "class A: ...\ndef f(): ...\nB: TypeAlias = int\nPair = tuple[int, int]\nD_MAX = 1\nword = 2\n_E = int\n"
    assert list(public_names(ast.parse(text))) == ["A", "f", "B", "Pair"]
