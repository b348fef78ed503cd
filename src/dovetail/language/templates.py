"""Chat templates of model files: Jinja in a sandbox, with bounds on size, output, loops and time.

A file may come from anywhere: its template may read the messages and nothing else, and ends in time or is stopped.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from dovetail.errors import LoadError, OptionError, UnsupportedError
from dovetail.frontends.shared.messages import printable
from dovetail.sanitize import sanitize

LONGEST_TEMPLATE = 1 << 18
LONGEST_OUTPUT = 1 << 22
"""Characters."""
MOST_STEPS = 200_000
"""Of all loops together."""
LONGEST_RANGE = 10_000
SECONDS = 5.0
_HINT = "build the prompt by hand, or use another file"

Message = Mapping[str, Any]
"""A turn: its `role`, its `content`, and whatever else a template reads."""


class ChatTemplate:
    """A chat template, compiled."""

    def __init__(self, source: str) -> None:
        if len(source) > LONGEST_TEMPLATE:
            raise LoadError(f"a chat template of {len(source):,} characters", hint=f"at most {LONGEST_TEMPLATE:,}")
        self._clock = _Clock()
        environment, self._errors = _environment(self._clock)
        try:
            self._template = environment.from_string(source)
        except (*self._errors, RecursionError, ValueError, SyntaxError, MemoryError) as error:
            raise LoadError(f"a chat template that is not Jinja: {_said(error)}", hint=_HINT) from error

    def render(self, messages: Sequence[Message], more: Mapping[str, Any] | None = None) -> str:
        """The prompt for messages; it ends where the model's answer starts."""
        said = check_messages(messages)
        self._clock.start()
        parts: list[str] = []
        length = 0
        try:
            given = {"messages": said, "add_generation_prompt": True, "tools": None, "documents": None, **(more or {})}
            for part in self._template.generate(given):
                length += len(part)
                self._clock.tick(0)
                if length > LONGEST_OUTPUT:
                    raise _TooMuch(f"more than {LONGEST_OUTPUT:,} characters")
                parts.append(part)
        except _Refused as error:
            raise OptionError(f"the chat template refuses the messages: {_said(error)}", hint="change them") from error
        except _TooMuch as error:
            raise LoadError(f"a chat template that makes {_said(error)}", hint=_HINT) from error
        except (*self._errors, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise LoadError(f"a chat template that fails: {_said(error)}", hint=_HINT) from error
        except (RecursionError, MemoryError) as error:
            raise LoadError("a chat template that nests too deep", hint=_HINT) from error
        return "".join(parts)


def check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as plain maps; raise unless each has a role and a content."""
    given: object = messages
    if not isinstance(given, list | tuple) or not given:
        raise OptionError("no messages", hint="pass a list of {'role': …, 'content': …}")
    found: list[dict[str, Any]] = []
    for each in cast(Sequence[object], given):
        known: Mapping[str, Any] = cast(Mapping[str, Any], each) if isinstance(each, Mapping) else {}
        if not isinstance(known.get("role"), str) or "content" not in known:
            raise OptionError("a message without a role or a content", hint="pass {'role': …, 'content': …}")
        found.append(dict(known))
    return found


class _Refused(Exception):
    """The template raised an exception of its own."""


class _TooMuch(Exception):
    """The template ran into a bound."""


class _Clock:
    """Counts the steps of a rendering and watches its time."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.steps, self.end = 0, time.monotonic() + SECONDS

    def tick(self, steps: int = 1) -> None:
        self.steps += steps
        if self.steps > MOST_STEPS:
            raise _TooMuch(f"more than {MOST_STEPS:,} steps")
        if time.monotonic() > self.end:
            raise _TooMuch(f"a prompt for more than {SECONDS:.0f} s")


def _environment(clock: _Clock) -> tuple[Any, tuple[type[BaseException], ...]]:
    """A sandbox that counts, and the errors that it raises."""
    names = ("jinja2", "jinja2.ext", "jinja2.nodes", "jinja2.sandbox", "jinja2.visitor")
    try:
        # An optional package, for chat templates.
        jinja2, ext, nodes, sandbox, visitor = (cast(Any, importlib.import_module(name)) for name in names)
    except ImportError as error:
        raise UnsupportedError(
            "chat templates need the jinja2 package", hint=f"pip install 'dovetail-ml[language]', or {_HINT}"
        ) from error

    class Counting(visitor.NodeTransformer):
        """Loops count their steps, and texts that are put together their characters."""

        def visit_For(self, node: Any) -> Any:
            self.generic_visit(node)
            node.iter = nodes.Filter(node.iter, _COUNTED, [], [], None, None, lineno=node.lineno)
            return node

        def visit_Concat(self, node: Any) -> Any:
            self.generic_visit(node)
            listed = nodes.List(node.nodes, lineno=node.lineno)
            return nodes.Filter(listed, "join", [], [], None, None, lineno=node.lineno)

    class Sandbox(sandbox.ImmutableSandboxedEnvironment):
        """Operators and calls count as steps; what makes texts or lists longer is bounded."""

        intercepted_binops = frozenset(("*", "**", "+", "%", "//", "/", "-"))

        def _parse(self, source: str, name: Any, filename: Any) -> Any:
            above: Any = super()
            return Counting().visit(above._parse(source, name, filename))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            clock.tick()
            _check_operator(operator, left, right)
            above: Any = super()
            return above.call_binop(context, operator, left, right)

        def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
            clock.tick()
            owner = getattr(obj, "__self__", None)
            if isinstance(owner, str | bytes):
                _check_method(getattr(obj, "__name__", ""), owner, (*args, *kwargs.values()))
            above: Any = super()
            return above.call(context, obj, *args, **kwargs)

    class Generation(ext.Extension):
        """The tag around what an assistant said, which changes nothing."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    found = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols, Generation])
    found.globals = {
        "range": _range,
        "namespace": jinja2.utils.Namespace,
        "dict": dict,
        "raise_exception": _raise,
        "strftime_now": _now,
    }
    ours: dict[str, Callable[..., Any]] = {"join": _join, "replace": _replace, "indent": _indent, "tojson": _to_json}
    filters = {name: found.filters[name] for name in _FILTERS} | ours
    found.filters = {name: _watched(clock, each) for name, each in filters.items()}
    found.filters[_COUNTED] = functools.partial(_counted, clock)
    return found, (jinja2.TemplateError,)


_COUNTED = "dovetail_counted"
_FILTERS = (
    "abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "int", "items",
    "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "round", "safe",
    "select", "selectattr", "sort", "string", "sum", "title", "trim", "unique", "upper",
)  # fmt: skip
"""Filters of Jinja whose results are no longer than what they are given."""


def _watched(clock: _Clock, filter: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that counts as a step; marks of Jinja on it are kept."""

    @functools.wraps(filter)
    def counted(*args: Any, **kwargs: Any) -> Any:
        clock.tick()
        return filter(*args, **kwargs)

    return counted


def _counted(clock: _Clock, items: Any) -> Any:
    """What a loop goes through, each item a step."""
    if hasattr(items, "__len__"):
        clock.tick(len(items))
        return items
    return _each(clock, items)


def _each(clock: _Clock, items: Any) -> Iterator[Any]:
    for item in items:
        clock.tick()
        yield item


def _check_operator(operator: str, left: Any, right: Any) -> None:
    if operator == "**":
        raise _TooMuch("powers, which have no bound")
    if operator == "*" and _size(left) * _size(right) > LONGEST_OUTPUT:
        raise _TooMuch("products without bound")
    if operator == "+" and isinstance(left, str | list) and _size(left) + _size(right) > LONGEST_OUTPUT:
        raise _TooMuch("sums without bound")
    if operator == "%" and isinstance(left, str):
        _check_format(left)


def _size(x: Any) -> int:
    """The length of a text or a list, or the size of a number."""
    if hasattr(x, "__len__"):
        return len(x)
    return min(abs(int(x)), 1 << 62) if isinstance(x, int | float) and x == x and abs(x) != float("inf") else 1


def _check_format(form: str) -> None:
    if re.search(r"[0-9]{4}|\*", form):
        raise _TooMuch("texts of a width without bound")


def _check_method(name: str, owner: str | bytes, args: Sequence[Any]) -> None:
    """Raise before a method of a text makes one that is far longer."""
    numbers = [a for a in args if isinstance(a, int)]
    if name in ("center", "ljust", "rjust", "zfill", "expandtabs") and any(n > LONGEST_RANGE for n in numbers):
        raise _TooMuch("texts of a width without bound")
    if name == "format" or name == "format_map":
        _check_format(str(owner))
        if sum(len(str(a)) for a in args) * (1 + str(owner).count("{")) > LONGEST_OUTPUT:
            raise _TooMuch("texts by formats without bound")
    if name == "replace" and len(args) >= 2:
        _replace(str(owner), str(args[0]), str(args[1]))
    if name == "join" and args:
        _join(args[0], str(owner))
    if name == "translate":
        raise _TooMuch("texts by tables, which have no bound")


def _join(items: Any, between: str = "", attribute: Any = None) -> str:
    """Texts one after the other."""
    parts: list[str] = []
    length = 0
    for item in items:
        part = str(item if attribute is None else item[attribute])
        length += len(part) + len(between)
        if length > LONGEST_OUTPUT:
            raise _TooMuch("texts without bound")
        parts.append(part)
    return str(between).join(parts)


def _replace(text: Any, old: str, new: str, count: int | None = None) -> str:
    """A text with parts replaced."""
    whole = str(text)
    if len(whole) + whole.count(old) * len(new) > LONGEST_OUTPUT:
        raise _TooMuch("texts without bound")
    return whole.replace(old, new, -1 if count is None else count)


def _indent(text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """A text with its lines indented."""
    margin = " " * min(width, LONGEST_RANGE) if isinstance(width, int) else width
    whole = str(text)
    if len(whole) + len(margin) * (whole.count("\n") + 1) > LONGEST_OUTPUT:
        raise _TooMuch("texts without bound")
    lines = whole.split("\n")
    return "\n".join([margin + line if (line or blank) and (i or first) else line for i, line in enumerate(lines)])


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """JSON as models were trained with it: characters as they are."""
    kept = {name: options[name] for name in ("separators", "sort_keys") if name in options}
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=None if indent is None else min(indent, 16), **kept)


def _range(*bounds: int) -> range:
    found = range(*bounds)
    if len(found) > LONGEST_RANGE:
        raise _TooMuch(f"ranges of more than {LONGEST_RANGE:,}")
    return found


def _raise(message: object = "") -> None:
    raise _Refused(str(message))


def _now(form: str) -> str:
    return datetime.now().strftime(str(form)[:256])


def _said(error: BaseException) -> str:
    return sanitize(printable(str(error)[:300]))


__all__ = ["ChatTemplate", "Message", "check_messages"]
