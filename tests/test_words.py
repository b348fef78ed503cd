"""The words of the field: prose calls a concept by its standard name, and examples use public names only.

`docs/glossary.md` has the names.
"""

from __future__ import annotations

import ast
import importlib
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

import dovetail
from tests.sources import parsed
from tests.test_examples import FENCE

ROOT = Path(__file__).resolve().parent.parent

EVERYWHERE = {
    r"\bask(s|ed|ing)? for\b": "prefetch, request, read",
    r"\b(first|second|third) cache\b": "L1, L2, L3",
    r"\bwhole numbers?\b": "integer",
    r"\bbehind\b": "after",
    r"\bso many\b": "n, this many",
    r"\b(nobody|somebody|whoever|whomever)\b": "name what acts",
    r"\bturned round\b": "transposed, reversed",
    r"\bone behind the other\b": "concatenated, in sequence",
}
IN_CODE = {
    **EVERYWHERE,
    r"\b(who|whom|whose turn)\b": "the thread, the kernel",
    r"\bbeside\b": "next to, in addition to",
    r"\b(lie|lies)\b": "is stored, is",
    r"\bturned\b": "transposed, reversed, iterated",
    r"\b(told|telling)\b": "reported, explained; gets, takes",
    r"\bwanted\b": "expected, needed",
    r"\bways\b": "candidates, variants",
    r"\bin parts\b": "split-K; cut into parts",
    r"\bleft over\b": "the remainder",
    r"\bresident (kernel|part)s?\b": "persistent kernel",
    r"\bproducts? of few rows\b": "GEMV, skinny GEMM",
    r"(?m:^What is (left|made|given|found)\b)": "Return the …, by what it is",
}
ROOMS = (
    "kernels",
    "codegen",
    "targets",
    "egraph",
    "ops",
    "ir",
    "match",
    "derive",
    "grad",
    "plan",
    "models",
    "train",
    "torch",
    "bench",
)
"""The rooms whose names, docstrings and comments have no private word."""
UPPER = tuple(room for room in ROOMS if room not in ("kernels", "codegen", "targets"))
"""The rooms where the docstring of a function says what to do: "Return the …", "Fold …"."""

NAMES = {
    "found": "what it is: the contraction, the loaded vector, the kernel; `found` goes with `expected` only",
    "made": "what it is: the kernel, the handle; results, computed",
    "given": "operands, arguments, parameters, weights",
    "wanted": "expected, outputs, gradients",
    "told": "reported, explained, considered; progress",
    "telling": "reporting, explaining",
    "ways": "candidates, variants; the associativity of a cache",
    "left_over": "the remainder, by what it is",
    "resident_kernel": "persistent_kernel",
    "in_parts": "split_k",
    "few_rows_product": "gemv, skinny_gemm",
}
UPPER_NAMES = {
    **NAMES,
    "said": "the message, the reason, the text",
    "asked": "the question, the request, the query",
}
"""Words that say that something was there, and not what it is: no name in the rooms has one."""
KEPT = frozenset(
    {
        ("ir/solve.py", "Found"),
        ("declare/machine.py", "given"),
        ("declare/machine.py", "given_per_second"),
        ("models/decoder.py", "wanted"),
    }
)
"""Names of the upper rooms that the lower ones read, or callers pass."""
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *(p for p in sorted((ROOT / "docs").rglob("*.md")) if p.parent.name != "catalogue" and p.name != "conformance.md"),
]
"""Pages of the catalogue and the reasons of conformance quote the library and the importer."""

PUBLIC = (
    "dovetail",
    *(f"dovetail.{name}" for name in dovetail.MODULES),
    "dovetail.adapters.onnx_backend",
    "dovetail.frontends.safetensors",
    "dovetail.targets.xla",
)
"""The modules of `docs/api.md`."""

_CODE = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)|<!--.*?-->", re.DOTALL)
"""What is no prose on a page: blocks, code in a line, addresses, comments."""
_PATH = re.compile(r"`((?:[\w.]+/)+[\w.-]+\.(?:py|md|toml))`")


def private_words(prose: str, words: Iterable[str]) -> Iterator[re.Match[str]]:
    for pattern in words:
        yield from re.finditer(pattern, prose, re.IGNORECASE)


def on_page(text: str) -> str:
    """A page without its code, its lines kept."""
    return _CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def in_code(text: str) -> str:
    """The docstrings and comments of a module."""
    comments = [t.string for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.COMMENT]
    return "\n".join([*_docstrings(ast.parse(text)), *comments])


def _docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Expr(ast.Constant(str() as text)):
                yield text
            case _:
                pass


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_use_the_words_of_the_field(path: Path) -> None:
    prose = on_page(path.read_text(encoding="utf-8"))
    found = [
        f"{path.relative_to(ROOT)}:{prose.count(chr(10), 0, m.start()) + 1}: {m[0]}; write: {instead}"
        for pattern, instead in EVERYWHERE.items()
        for m in private_words(prose, [pattern])
    ]
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_rooms_use_the_words_of_the_field() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in MODULES}
    anywhere = re.compile("|".join(IN_CODE), re.IGNORECASE)
    # Few files have such a word anywhere: the others are not split into tokens.
    proses = {path: on_page(in_code(text)) for path, text in texts.items() if anywhere.search(text)}
    found = [
        f"{path.relative_to(ROOT)}: {m[0]}; write: {instead}"
        for path, prose in proses.items()
        for pattern, instead in IN_CODE.items()
        for m in private_words(prose, [pattern])
    ]
    assert not found, "see docs/glossary.md for the field's words\n" + "\n".join(found)


def words_of(name: str) -> str:
    """A name in snake_case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")


_PRIVATE_NAME = re.compile(rf"(?<![a-z0-9])({'|'.join(UPPER_NAMES)})(?![a-z0-9])")


def _fields_of_reports(node: ast.ClassDef) -> Iterator[ast.Name]:
    """The field `found` of a class that has `expected`, too."""
    fields = {
        n.target.id: n.target for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    }
    if {"found", "expected"} <= fields.keys():
        yield fields["found"]


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that a module binds: of modules, classes, functions, parameters, fields and locals, with its line.

    A record may say what it found where it also says what it expected.
    """
    nodes = list(ast.walk(tree))
    reports = {field for node in nodes if isinstance(node, ast.ClassDef) for field in _fields_of_reports(node)}
    for node in nodes:
        match node:
            case ast.Name() if node in reports:
                pass
            case ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.alias(asname=str(name)):
                yield node.lineno, name
            case _:
                pass


def private_names(tree: ast.AST, words: Mapping[str, str] = NAMES) -> Iterator[tuple[int, str, str]]:
    """Yield names with a private word: the line, the name, and what to write."""
    for line, name in bound_names(tree):
        private = _PRIVATE_NAME.search(words_of(name))
        if private is not None and private[1] in words:
            yield line, name, words[private[1]]


def within(path: Path) -> str:
    """Return the path of a file in the package."""
    return path.relative_to(ROOT / "src" / "dovetail").as_posix()


MODULES = [path for room in ROOMS for path in sorted((ROOT / "src" / "dovetail" / room).rglob("*.py"))]


@pytest.mark.slow
def test_names_say_what_a_thing_is() -> None:
    wrong = [
        f"{within(path)}:{line}: {name}; write: {instead}"
        for path in MODULES
        for words in [UPPER_NAMES if within(path).split("/")[0] in UPPER else NAMES]
        for line, name, instead in [(0, path.stem, words.get(path.stem, "")), *private_names(parsed(path), words)]
        if instead and (within(path), name) not in KEPT
    ]
    assert not wrong, "\n".join(wrong)


_NOUNS = frozenset({"What", "Whether", "The", "A", "An"})
_PLAIN = frozenset({"staticmethod", "classmethod", "cache", "lru_cache", "contextmanager"})
"""Decorators of functions that are only called. A property's docstring is a noun, a rule's is its entry on a page."""


def no_imperatives(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield functions whose docstrings begin with a noun, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)):
            decorators = {ast.unparse(d).split("(")[0].rpartition(".")[2] for d in node.decorator_list}
            if decorators <= _PLAIN and text.split()[0] in _NOUNS:
                yield node.lineno, node.name


@pytest.mark.slow
def test_docstrings_say_what_to_do() -> None:
    wrong = [
        f"{within(path)}:{line}: {name}"
        for room in UPPER
        for path in sorted((ROOT / "src" / "dovetail" / room).rglob("*.py"))
        for line, name in no_imperatives(parsed(path))
    ]
    assert not wrong, 'begin with a verb: "Return the …", "Yield …"\n' + "\n".join(wrong)


def test_docstrings_without_a_verb_are_known() -> None:
    tree = ast.parse(
        'def f():\n  "The sum."\ndef g():\n  "Return the sum."\n@property\ndef h(x):\n  "The sum."\n'
        '@functools.cache\ndef i():\n  "Whether it is."'
    )
    assert [name for _, name in no_imperatives(tree)] == ["f", "i"]


def test_private_names_are_known() -> None:
    tree = ast.parse(
        "class Made:\n  ways: int\ndef _found(given, *, by_name): told, y = 1, 2\n"
        "class Refused:\n  found: str\n  expected: str\nx.is_wanted = founder = 3"
    )
    wrong = [name for _, name, _ in sorted(private_names(tree))]
    assert wrong == ["Made", "ways", "_found", "given", "told", "is_wanted"]


def test_prose_is_told_from_code() -> None:
    assert "behind" not in on_page("a `behind` b\n```\nbehind\n```\n[x](behind.md)")
    assert [m[0] for m in private_words(on_page("what is\nbehind it"), EVERYWHERE)] == ["behind"]
    said = in_code('"""One."""\nx = "behind"\n"""Two."""\ny = 1  # three\n')
    assert said.split() == ["One.", "Two.", "#", "three"]


@pytest.mark.slow
def test_paths_on_pages_exist() -> None:
    missing: list[str] = []
    for path in PAGES:
        for named in _PATH.findall(path.read_text(encoding="utf-8")):
            roots = (ROOT, ROOT / "src" / "dovetail", ROOT / "docs", ROOT / "src" / "dovetail" / "frontends" / "onnx")
            if not any((root / named).exists() for root in roots) and "build/" not in named:
                missing.append(f"{path.relative_to(ROOT)}: {named}")
    assert not missing, "\n".join(missing)


def imported(code: str) -> Iterator[tuple[str, str]]:
    """The modules of dovetail that a script imports, each with a name that it takes from there or none."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "dovetail")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dovetail":
            yield from ((node.module or "", alias.name) for alias in node.names)


def scripts() -> Iterator[tuple[str, str]]:
    """Every example, every from-scratch file, and the code of every page but those about the inside."""
    for path in [*(ROOT / "examples").glob("*.py"), *(ROOT / "docs").glob("*.py")]:
        yield path.name, path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        blocks = FENCE.finditer(path.read_text(encoding="utf-8"))
        yield path.name, "\n".join(found["code"] for found in blocks if found["code"] is not None)


def offered(module: str) -> Iterable[str]:
    """What a module lists, or else every name that is not private."""
    here = importlib.import_module(module)
    return getattr(here, "__all__", None) or [name for name in vars(here) if name[0] != "_"]


@pytest.mark.slow
def test_examples_and_pages_import_public_names_only() -> None:
    inside = [
        f"{where}: from {module} import {name}"
        for where, code in scripts()
        for module, name in imported(code)
        if f"{module}.{name}" not in PUBLIC and (module not in PUBLIC or (name and name not in offered(module)))
    ]
    assert not inside, "not in docs/api.md\n" + "\n".join(inside)


def test_the_page_of_the_api_names_every_public_module_and_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert not [module for module in PUBLIC if f"`{module}`" not in page]
    listed = [f"dovetail.{name}" for name in ("errors", "graphs", "mesh", "programs", "reports", "language")]
    names = {name for module in ("dovetail", *listed) for name in importlib.import_module(module).__all__}
    assert not [name for name in sorted(names) if f"`{name}`" not in page]
