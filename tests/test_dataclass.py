"""Our dataclasses do what the standard library's do, for every form that the tree uses."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import pickle
import weakref
from collections.abc import Callable
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

import dovetail
from dovetail.dataclass import dataclass as ours

Decorator = Callable[..., Any]


def _plain(dataclass: Decorator, **options: Any) -> Any:
    @dataclass(**options)
    class Shape:
        """Every kind of field."""

        kind: ClassVar[str] = "shape"
        a: int
        b: float = 2.0
        c: list[int] = field(default_factory=list[int], compare=False)
        d: str = field(default="d", repr=False, kw_only=True)
        e: int = field(default=7, init=False)

    return Shape


def _checked(dataclass: Decorator, **options: Any) -> Any:
    @dataclass(**options)
    class Checked:
        """Checks itself, prints itself."""

        a: int
        b: float = 0.0

        def __post_init__(self) -> None:
            if self.a < 0:
                raise ValueError("negative")

        def __repr__(self) -> str:
            return f"<{self.a}>"

    return Checked


def _derived(dataclass: Decorator, **options: Any) -> Any:
    @dataclass(**options)
    class Base:
        """Inherited."""

        a: int

    @dataclass(**options)
    class Derived(Base):
        """Inherits."""

        b: float = 1.0

        def __hash__(self) -> int:
            return 5

    return Derived


OPTIONS: list[dict[str, Any]] = [
    {},
    {"frozen": True},
    {"slots": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "eq": False},
    {"slots": True, "eq": False},
]


def _outcome(act: Callable[[], Any]) -> Any:
    """The result of a call, or its error without the names of modules."""
    try:
        return act()
    except Exception as error:
        return type(error), str(error)


def _marked(dataclass: Decorator, **options: Any) -> Any:
    @dataclass(**options)
    class Marked:
        """What follows the marker is passed by name."""

        a: int
        b: float = 1.0
        _: dataclasses.KW_ONLY
        c: str = "c"

    return Marked


@pytest.mark.parametrize("make", [_plain, _checked, _derived, _marked])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_our_dataclasses_behave_as_the_standard_librarys(make: Callable[..., Any], options: dict[str, Any]) -> None:
    results = [_behaviour(make(dataclass, **options)) for dataclass in (ours, dataclasses.dataclass)]
    assert results[0] == results[1]


def _behaviour(cls: Any) -> list[Any]:
    """What can be observed of a class."""
    unused = str(inspect.signature(cls)), cls.__init__.__qualname__, cls.__init__.__name__
    one, same, other = cls(1), cls(1), cls(2, 3.0)
    params = cls.__dataclass_params__

    def assigned() -> Any:
        mine = cls(1)
        mine.a = 9
        return mine.a

    def deleted() -> Any:
        mine = cls(1)
        del mine.a
        return hasattr(mine, "a")

    def strange() -> None:
        cls(1).strange = 1

    return [
        unused,
        str(inspect.signature(cls)),
        cls.__annotations__,
        cls.__init__.__qualname__,
        cls.__match_args__,
        [(f.name, f.type) for f in fields(cls)],
        (repr(one), repr(other)) if cls.__repr__ is not object.__repr__ else None,
        (one == same, one == other, one != same, one == (1, 2.0)),
        _outcome(lambda: hash(one) == hash(same)),
        cls.__hash__ is None,
        [repr(c) for c in (replace(one, a=4), copy.copy(other), copy.deepcopy(other))],
        [_outcome(act) for act in (assigned, deleted, cls, lambda: repr(cls(-1)), lambda: cls(1, nothing=2))],
        type(_outcome(strange)),
        hasattr(one, "__dict__"),
        (params.frozen, params.eq),
    ]


@ours(frozen=True, slots=True)
class Stored:
    """Of the module, so that a pickle finds it."""

    a: int
    b: tuple[int, ...] = ()


@ours(frozen=True, slots=True, eq=False, weakref_slot=True)
class Referenced:
    """Has weak references."""

    a: int


@ours(frozen=True, slots=True)
class Nested:
    """May hold itself."""

    items: list[object]


def test_pickles_of_frozen_classes_with_slots_restore_every_field() -> None:
    assert pickle.loads(pickle.dumps(Stored(1, (2, 3)))) == Stored(1, (2, 3))


def test_a_class_may_have_weak_references_and_identity() -> None:
    one = Referenced(1)
    assert weakref.ref(one)() is one and one != Referenced(1)


def test_a_value_that_holds_itself_prints() -> None:
    items: list[object] = []
    nested = Nested(items)
    items.append(nested)
    assert repr(nested) == "Nested(items=[...])"


def test_an_init_var_is_refused() -> None:
    with pytest.raises(TypeError, match="InitVar"):

        @ours
        class Wrong:  # pyright: ignore[reportUnusedClass]
            """Has a parameter that is no field."""

            a: dataclasses.InitVar[int]


def test_a_class_below_has_the_signature_of_its_own_init() -> None:
    class Below(Stored):
        def __init__(self, c: str) -> None:
            super().__init__(len(c), b=())

    class Same(Stored):
        pass

    assert str(inspect.signature(Below)) == "(c: 'str') -> 'None'"
    assert inspect.signature(Same) == inspect.signature(Stored)
    assert Below("four").a == 4


def _standard(path: Path) -> list[str]:
    """The lines that name the standard library's decorator."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        imports = isinstance(node, ast.ImportFrom) and node.module == "dataclasses"
        names = [alias.name for alias in node.names] if imports and isinstance(node, ast.ImportFrom) else []
        spelled = isinstance(node, ast.Attribute) and ast.unparse(node) == "dataclasses.dataclass"
        if spelled or "dataclass" in names:
            found.append(f"{path}:{getattr(node, 'lineno', 0)}")
    return found


@pytest.mark.slow
def test_the_tree_uses_our_decorator() -> None:
    root = Path(dovetail.__file__).parent
    files = [path for path in sorted(root.rglob("*.py")) if path != root / "dataclass.py"]
    # Few files import the standard module: parsing all of them takes seconds.
    files = [path for path in files if "dataclasses" in path.read_text(encoding="utf-8")]
    assert len(files) > 50
    found = [line for path in files for line in _standard(path)]
    assert not found, "import dataclass from dovetail.dataclass, which defines classes in a tenth of the time"
