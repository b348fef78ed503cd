"""`dovetail why`: every rule tried at one node, how far each got, and the kernel that the node ended in."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from dovetail.cli.command import SCHEMA_VERSION, Answer, Argument, Command
from dovetail.cli.nodes import UnknownNodeError, enclosing, find
from dovetail.cli.options import COMPILING, JSON, PRECISION, compiled
from dovetail.cli.terminal import look_of
from dovetail.dataclass import dataclass
from dovetail.derive.why import Attempt, Why, why
from dovetail.errors import UnsupportedError
from dovetail.ir.text import local_names
from dovetail.ir.value import Value
from dovetail.passes.pipeline import worthwhile
from dovetail.report.chain import Link, Teller, chain_lines, link_dict
from dovetail.report.paint import PLAIN, Line, Look, Piece, Tone, line, shown
from dovetail.report.recompute import AgainEntry, SavedEntry, told_of
from dovetail.report.record import Boundary, Kernel, MissedEntry, Node
from dovetail.report.rounding import rounding_text
from dovetail.report.text import bytes_text, of_roofline, served, short_type, time_text, without_kernel
from dovetail.runtime.compile import Compilation
from dovetail.sanitize import visible
from dovetail.targets import every_target
from dovetail.targets.target import Considered

_MOST_LISTED = 20


@dataclass(frozen=True, slots=True)
class Story:
    """Everything that is known of one node of the graph as written."""

    node: Node
    type: str
    attempts: tuple[Attempt, ...]
    chain: tuple[str, ...]
    """The rules that swallowed it, in order."""
    kernel: Kernel | None
    """The kernel that computes it, or that has absorbed it; None where no kernel reads it."""
    missed: tuple[MissedEntry, ...]
    """What the report says was missed at that kernel."""
    apart: tuple[Boundary, ...]
    """Why that kernel is not one with its neighbours."""
    code: Code | None = None
    """That kernel's code, on request."""
    considered: tuple[Considered, ...] = ()
    """The variants of that kernel that were considered, in the order of preference."""
    recompute: SavedEntry | AgainEntry | None = None
    """Whether the backward pass reads it or computes it again, where there is one that needs it."""
    links: tuple[Link, ...] = ()
    """Every rule application that led from the nodes as written to that kernel."""
    parts: tuple[Node, ...] = ()
    """All ops that a node of the file became, where they are several; the story is of one in the longest kernel."""
    inside: str = ""
    """The node that was asked for, where it is in a body or a function of this one."""


@dataclass(frozen=True, slots=True)
class Code:
    """The code of a kernel."""

    form: str
    """The name of its notation."""
    doc: str
    """What that notation shows."""
    text: str


def run(args: argparse.Namespace) -> Answer:
    made = compiled(args, history=True)
    try:
        story = story_of(made, args.node, args.code)
    except UnknownNodeError as unknown:
        outer, inside = enclosing(args.model, args.node, unknown)
        story = replace(story_of(made, outer, args.code), inside=inside)
    if args.json:
        return Answer(json.dumps(as_dict(story), indent=2))
    return Answer(as_text(story, look_of(sys.stdout)), painted=True)


def _share(kernel: Kernel | None) -> tuple[bool, float]:
    """Of several kernels that compute a node, the one that takes most of a run counts."""
    return (False, -1.0) if kernel is None else (kernel.phase == "run", kernel.seconds)


def story_of(made: Compilation, asked: str, form: str | None = None) -> Story:
    """Follow the node that was asked for through every rule to its kernel; `form` asks for that kernel's code."""
    written = made.lowered.written
    names = local_names(written, written.values)
    parts = find(written, names, asked)
    report = made.report()
    nodes = [Node(names[v], v.op.name, written.where(v)) for v in parts]
    kernels = [max([k for k in report.kernels if n in k.works_for], key=_share, default=None) for n in nodes]
    at = max(range(len(parts)), key=lambda i: _share(kernels[i]))
    value, node, computing = parts[at], nodes[at], kernels[at]
    kernel = computing or next((k for k in report.kernels if node in k.absorbed), None)
    name = kernel.name if kernel is not None else ""
    found = _tried(made, value)
    entry = next((f for f in report.fused if kernel is not None and f.kernel == name), None)
    return Story(
        node=node,
        type=str(value.type),
        attempts=found.attempts,
        chain=entry.chain if entry is not None else found.chain,
        kernel=kernel,
        missed=tuple(m for m in report.missed if name in m.kernels) if name else (),
        apart=tuple(b for b in report.boundaries if name in (b.producer, b.consumer)) if name else (),
        code=None if form is None else code_of(made, report.kernels, computing, node, form),
        considered=considered_for(made, report.kernels, kernel),
        recompute=told_of(made.lowered, value, made.machine, made.setup.sizes),
        links=() if kernel is None else links_to(made, made.plan.steps[report.kernels.index(kernel)].value),
        parts=tuple(nodes) if len(nodes) > 1 else (),
    )


def considered_for(made: Compilation, kernels: Sequence[Kernel], kernel: Kernel | None) -> tuple[Considered, ...]:
    """The variants that the target considered for a kernel."""
    # Kernels are reported in the order of the steps.
    return () if kernel is None else made.considered(made.plan.steps[kernels.index(kernel)])


def links_to(made: Compilation, value: Value) -> tuple[Link, ...]:
    """The chain that led to a value of the final graph, where edits were recorded."""
    history = made.lowered.history
    return () if history is None else Teller(history).chain(value)


def code_of(made: Compilation, kernels: Sequence[Kernel], kernel: Kernel | None, node: Node, form: str) -> Code:
    """The code of the kernel that a node ended in."""
    if kernel is None:
        hint = "ask about a value that reads it, or leave --code out"
        raise UnsupportedError(f"{node.op} {node.name} has no code: no kernel computes it", hint=hint)
    target = made.target
    if target.code is None:
        showing = " and ".join(t.name for t in every_target() if t.code is not None)
        raise UnsupportedError(f"the target {target.name} has no code to show", hint=f"code is shown by {showing}")
    notation = target.code.notation(form)
    # Kernels are reported in the order of the steps.
    text = target.code.listing(made.plan, made.plan.steps[kernels.index(kernel)], notation)
    return Code(notation.name, notation.doc, text)


def _tried(made: Compilation, value: Value) -> Why:
    """What fusing made of a value; nothing where there was nothing left of it by then."""
    canonical = made.lowered.stage("canonical")
    if canonical is not made.lowered.written:
        value = canonical.moved.get(value, value)
    if value not in canonical.uses.readers:
        return Why((), (), value)
    ops, machine, sizes = worthwhile(made.setup), made.setup.claims.machine, made.setup.sizes
    return why(canonical.settled(), value, ops, machine=machine, sizes=sizes)


def as_dict(story: Story) -> dict[str, Any]:
    """The story as plain lists and numbers."""
    kernel = story.kernel
    return {
        "schema_version": SCHEMA_VERSION,
        "node": story.node.name,
        "op": story.node.op,
        "type": story.type,
        "where": story.node.where,
        "attempts": [asdict(a) for a in story.attempts],
        "parts": [asdict(n) for n in story.parts],
        "inside": story.inside,
        "chain": list(story.chain),
        "links": [link_dict(link) for link in story.links],
        "kernel": asdict(kernel) if kernel is not None else None,
        "missed": [
            {"rule": m.rule, "reason": m.reason, "message": m.message, "hint": m.hint, "kernels": list(m.kernels)}
            for m in story.missed
        ],
        "considered": [asdict(c) for c in story.considered],
        "boundaries": [asdict(b) for b in story.apart],
        "recompute": None if story.recompute is None else asdict(story.recompute),
        "code": None if story.code is None else {"form": story.code.form, "text": story.code.text},
    }


def as_text(story: Story, look: Look = PLAIN) -> str:
    """The story for people: where it ended, what was tried, what keeps its kernel apart, and its code."""
    where = f" at {story.node.where}" if story.node.where else ""
    head = line(Piece(f"{story.node.name} = {story.node.op}", "strong"), f": {story.type}{where}", hang=2)
    lines = [head, *_asked(story), *_kernel(story), *_recompute(story.recompute), line()]
    tried = f"tried {len(story.attempts)} rule{'s' if len(story.attempts) > 1 else ''}"
    none = "it was rewritten before rules were tried" if story.chain or story.links else "no rule starts or passes here"
    lines.append(line(tried if story.attempts else none))
    for attempt in story.attempts:
        lines += _attempt(attempt)
    told = {a.rule for a in story.attempts if a.outcome == "refused"}
    for miss in story.missed:
        if miss.rule not in told or miss.hint:
            lines.append(line("  ", Piece(f"{'missed':<10}  ", "warn"), f"{miss.rule} at {miss.node}", hang=_INDENT))
            lines += _because(miss.reason, miss.message, miss.hint)
    if story.links:
        lines += [line(), line("the chain from the nodes as written to its kernel"), *chain_lines(story.links)]
    if story.considered:
        lines += [
            line(),
            line("kernels that were considered, the preferred first; priced alike on every host"),
            *map(_considered, story.considered),
        ]
    if story.apart:
        lines += [line(), line("its kernel stays apart from (names of stage legal)")]
        lines += [said for boundary in story.apart for said in _apart(boundary, story.kernel)]
    if story.code is None:
        return shown(lines, look)
    # Code is never wrapped: it is to be read by tools too.
    title = line(Piece(f"its code ({story.code.doc})", "strong"))
    code = "\n".join(map(visible, story.code.text.expandtabs(8).split("\n")))
    return "\n".join([shown([*lines, line(), title], look), code])


_INDENT = 14
_TONES: dict[str, Tone] = {"fused": "good", "refused": "warn", "mismatched": "dim"}


def _asked(story: Story) -> list[Line]:
    """How the op is related to the node that was asked for."""
    lines = [line(f"  {story.inside} is in a body or a function of this node", hang=4)] if story.inside else []
    if story.parts:
        listed = ", ".join(f"{n.op} {n.name}" for n in story.parts[:_MOST_LISTED])
        more = f" and {len(story.parts) - _MOST_LISTED} more" if len(story.parts) > _MOST_LISTED else ""
        lines.append(line(f"  one of the {len(story.parts)} ops that the node became: {listed}{more}", hang=4))
    return lines


def _kernel(story: Story) -> list[Line]:
    kernel = story.kernel
    if kernel is None:
        return [line("  no kernel computes it: it became a view, a constant, or part of another value", hang=4)]
    named = Piece(f"{kernel.name} = {served(kernel.title, kernel.form)}", "strong")
    if story.node in kernel.absorbed:
        gone = "  no kernel computes it: it became a view, a constant, or part of another value in the kernel "
        return [
            line(gone, named, f": {short_type(kernel.type)} (of stage legal)", hang=4),
            line(f"  {_price(kernel)}", hang=4),
        ]
    others = [n.name for n in kernel.works_for if n != story.node]
    more = f" and {len(others) - _MOST_LISTED} more" if len(others) > _MOST_LISTED else ""
    shared = f" together with {', '.join(others[:_MOST_LISTED])}{more}" if others else " alone"
    lines = [line(f"  computed{shared} by the kernel ", named, f": {short_type(kernel.type)} (of stage legal)", hang=4)]
    if story.chain:
        lines.append(line("  by ", Piece(" → ".join(story.chain), "good"), hang=4))
    if kernel.rounding:
        lines.append(line("  it rounds ", Piece(rounding_text(kernel.rounding, [kernel]), "warn"), hang=4))
    return [*lines, line(f"  {_price(kernel)}", hang=4)]


def _recompute(told: SavedEntry | AgainEntry | None) -> list[Line]:
    """Why the backward pass reads it, or what computing it again saves and costs."""
    match told:
        case SavedEntry():
            price = "" if told.seconds is None else f" ({time_text(told.seconds)})"
            by = f", which {told.reader} needs" if told.reader else ""
            said = f"{bytes_text(told.bytes)}{by}; {told.reason}{price}"
            return [line("  ", Piece("saved for the backward pass: ", "note"), said, hang=4)]
        case AgainEntry():
            said = f"saves {bytes_text(told.bytes)}, costs {time_text(told.seconds)}"
            return [line("  ", Piece("computed again in the backward pass: ", "note"), said, hang=4)]
        case None:
            return []


def _price(kernel: Kernel) -> str:
    """What the kernel takes, by the model of the machine."""
    if kernel.phase == "bind":
        return "it runs once, when parameters are bound"
    near = f", {of_roofline(kernel.floor_seconds / kernel.seconds, ops=[kernel.op])}" if kernel.seconds else ""
    host = f", on the host: it {without_kernel(kernel.lacks)}" if kernel.on_host else near
    return f"predicted {time_text(kernel.seconds)}: {kernel.flops:,} flops, {bytes_text(kernel.bytes)} moved{host}"


def _attempt(attempt: Attempt) -> list[Line]:
    variant = f" [{attempt.variant}]" if attempt.variant else ""
    reach = f"  {attempt.matched} of {attempt.size} ops" if attempt.size else ""
    outcome = Piece(f"{attempt.outcome:<10}  ", _TONES[attempt.outcome])
    return [
        line("  ", outcome, f"{attempt.rule}{variant}{reach}", hang=_INDENT),
        *_because(attempt.reason, attempt.message, attempt.hint),
    ]


def _because(reason: str, message: str, hint: str) -> list[Line]:
    said = ": ".join(part for part in (reason, message) if part)
    lines = [line(" " * _INDENT, said, hang=_INDENT + 2)] if said else []
    return [*lines, *([line(" " * _INDENT, Piece(f"hint: {hint}", "note"), hang=_INDENT + 2)] if hint else [])]


def _considered(one: Considered) -> Line:
    bound = f", bound by {one.bound}" if one.bound else ""
    price = "" if one.seconds is None else f"  {time_text(one.seconds)} by the machine model{bound}"
    hint = f"  hint: {one.hint}" if one.hint else ""
    outcome = Piece(f"{'taken' if one.taken else 'passed':<10}  ", "good" if one.taken else "dim")
    return line("  ", outcome, f"{one.name}{price}{f'  {one.reason}' if one.reason else ''}{hint}", hang=_INDENT)


def _apart(boundary: Boundary, kernel: Kernel | None) -> list[Line]:
    reads = kernel is not None and boundary.consumer == kernel.name
    side = f"{boundary.producer}, which it reads" if reads else f"{boundary.consumer}, which reads it"
    rule = f"{boundary.rule} " if boundary.rule else ""
    return [line(f"  {side}", hang=4), *_because(f"{rule}{boundary.reason}", boundary.message, boundary.hint)]


def _notations() -> str:
    """The notations of every target, for the help."""
    return "; ".join(
        f"{target.name} has {', '.join(f'{n.name} ({n.doc})' for n in target.code.notations)}"
        for target in every_target()
        if target.code is not None
    )


COMMAND = Command(
    "why",
    "Say of one node which rules were tried, how far each got, what refused, and which kernel computes it.",
    (
        COMPILING[0],
        Argument(
            "node",
            "a name as show --stage mir prints it (%12), or words of its origin and its op ('layers.0 softmax')",
            {"metavar": "NODE"},
        ),
        *COMPILING[1:],
        PRECISION,
        Argument(
            "--code",
            f"show the code of that kernel too, in a notation of the target: {_notations()}",
            {"metavar": "NOTATION"},
        ),
        JSON,
    ),
    run,
)
