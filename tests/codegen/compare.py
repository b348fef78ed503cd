"""What differs between all generated code of this tree and that of a revision: the net under a refactoring.

`python -m tests.codegen.compare [REVISION]` generates the code of every case (tests/codegen/cases.py) for every device
with both trees, each in a process of its own, and lists the kernels that differ: a kernel is its device, its family and
its normalised text, whatever it is called and whichever file writes it. The revision is where the branch left `main`
unless it is named. What a revision generates is kept by its commit.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from io import BytesIO
from pathlib import Path
from typing import Any

from tests.codegen.normal import without_callees

ROOT = Path(__file__).resolve().parents[2]
DUMP = Path("tests/codegen/dump.py")
GROUPS = (
    ("avx512", "avx2", "neon", "neon_dot", "neon_i8mm", "avx512_amx", "avx2_pairs"),
    ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"),
)
"""Devices whose code one process generates: they share plans."""
QUICK = ("avx512", "avx2", "neon_i8mm", "avx512_amx", "sm_80", "sm_90a")
"""The devices of `--quick`."""
KEPT = 12
"""Revisions whose code is kept."""


@dataclass(frozen=True, slots=True)
class Case:
    """What a graph becomes: see `tests.codegen.dump.Compiled`."""

    launches: Sequence[str]
    functions: Sequence[str]
    error: str

    @property
    def kernels(self) -> set[str]:
        return {digest for launch in self.launches for digest in launch.split() if digest != "host"} | {*self.functions}


class Code:
    """The generated code of a device."""

    def __init__(self, path: Path) -> None:
        self._file = zipfile.ZipFile(path)
        content: Mapping[str, Mapping[str, Any]] = json.loads(self._file.read("cases.json"))
        self.cases = {name: Case(**case) for name, case in content["cases"].items()}
        self._kernels = content["kernels"]

    def family(self, digest: str) -> str:
        return self._kernels[digest]["family"]

    def name(self, digest: str) -> str:
        return self._kernels[digest]["name"]

    def text(self, digest: str) -> str:
        return self._file.read(digest).decode()

    def told(self, launches: Sequence[str]) -> str:
        """Launches by the names of their kernels, with counts."""
        counts = Counter("/".join(dict.fromkeys(self._named(one) for one in each.split())) for each in launches)
        return " ".join(name if count == 1 else f"{name}×{count}" for name, count in counts.items()) or "nothing"

    def _named(self, digest: str) -> str:
        return digest if digest == "host" else self.name(digest)


@dataclass(frozen=True, slots=True)
class Pair:
    """A kernel of the revision, one of this tree in its place, and the first graph that has them."""

    old: str
    new: str
    case: str


class Difference:
    """What differs on one device, in the graphs that both trees have."""

    def __init__(self, before: Code, now: Code, only: str = "", pattern: str = "*") -> None:
        self.before, self.now = before, now
        self.names = [n for n in now.cases if fnmatch(n, pattern) and n in before.cases]
        self.more = [n for n in now.cases if fnmatch(n, pattern) and n not in before.cases]
        was = {digest for name in self.names for digest in before.cases[name].kernels}
        found = {digest for name in self.names for digest in now.cases[name].kernels}
        self.count = len(found)
        self.gone = {d for d in was - found if only in ("", before.family(d))}
        self.new = {d for d in found - was if only in ("", now.family(d))}
        self.changed_cases = [n for n in self.names if self._differs(n, only)]
        self.pairs = list(self._pairs())

    def _differs(self, name: str, only: str) -> bool:
        was, found = self.before.cases[name], self.now.cases[name]
        if not only:
            return was != found
        kernels = [
            [x for x in case.launches if any(code.family(d) == only for d in x.split() if d != "host")]
            for code, case in ((self.before, was), (self.now, found))
        ]
        functions = [
            {d for d in case.functions if code.family(d) == only}
            for code, case in ((self.before, was), (self.now, found))
        ]
        return kernels[0] != kernels[1] or functions[0] != functions[1] or was.error != found.error

    def _pairs(self) -> Iterator[Pair]:
        """Kernels that stand in each other's place, each once."""
        gone, new = set(self.gone), set(self.new)
        for case in self.changed_cases:
            was, found = self.before.cases[case], self.now.cases[case]
            for olds, news in (
                *_replaced(was.launches, found.launches),
                *self._by_name(was.functions, found.functions),
            ):
                for old, now in zip(olds, news, strict=False):
                    for one, other in zip(old.split(), now.split(), strict=False):
                        if one in gone and other in new:
                            gone.discard(one)
                            new.discard(other)
                            yield Pair(one, other, case)

    def _by_name(self, olds: Sequence[str], news: Sequence[str]) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
        names = {self.before.name(d) for d in olds} & {self.now.name(d) for d in news}
        for name in sorted(names):
            yield [d for d in olds if self.before.name(d) == name], [d for d in news if self.now.name(d) == name]

    def __bool__(self) -> bool:
        return bool(self.gone or self.new or self.changed_cases)

    def lines(self, device: str) -> Iterator[str]:
        """What is said of the device."""
        differing = len(self.new | self.gone) if self else 0
        yield f"{device}: {self.count} kernels of {len(self.names)} graphs, {'equal' if not self else 'differ'}"
        if not self:
            return
        indirect = [p for p in self.pairs if self.is_indirect(p)]
        direct = [p for p in self.pairs if p not in indirect]
        olds, news = {p.old for p in self.pairs}, {p.new for p in self.pairs}
        counts: dict[str, Counter[str]] = {}
        for pair in direct:
            counts.setdefault(self.now.family(pair.new), Counter())["changed"] += 1
        for digest in self.new - news:
            counts.setdefault(self.now.family(digest), Counter())["new"] += 1
        for digest in self.gone - olds:
            counts.setdefault(self.before.family(digest), Counter())["gone"] += 1
        for family, how in sorted(counts.items()):
            yield f"  {family}: {', '.join(f'{how[each]} {each}' for each in ('changed', 'new', 'gone') if how[each])}"
            pairs = [p for p in direct if self.now.family(p.new) == family]
            for pair in pairs[:3]:
                old, new = self.before.name(pair.old), self.now.name(pair.new)
                yield f"    {old if old == new else f'{old} -> {new}'} of {pair.case}"
        if indirect:
            yield f"  {len(indirect)} that differ in the functions that they call alone"
        moved = [n for n in self.changed_cases if _shape(self.before, n) != _shape(self.now, n)]
        for name in moved[:10]:
            was, found = self.before.cases[name], self.now.cases[name]
            yield f"  {name}: {len(was.launches)} -> {len(found.launches)} launches"
            yield f"    {was.error or self.before.told(was.launches)}"
            yield f"    {found.error or self.now.told(found.launches)}"
        if len(moved) > 10:
            yield f"  and {len(moved) - 10} more graphs with other launches"
        if differing == 0 and not moved:
            yield f"  the same kernels in another order or for other sizes: {', '.join(self.changed_cases[:5])}"

    def is_indirect(self, pair: Pair) -> bool:
        return without_callees(self.before.text(pair.old)) == without_callees(self.now.text(pair.new))

    def diffs(self, device: str, count: int) -> Iterator[str]:
        """Unified diffs of the first kernels that differ."""
        for pair in [p for p in self.pairs if not self.is_indirect(p)][:count]:
            old, new = self.before.text(pair.old).splitlines(), self.now.text(pair.new).splitlines()
            before, now = (
                f"{device}/{side}/{code.name(digest)}"
                for side, code, digest in (("before", self.before, pair.old), ("now", self.now, pair.new))
            )
            yield from difflib.unified_diff(old, new, before, now, lineterm="")


def _shape(code: Code, case: str) -> tuple[object, ...]:
    """The families and names of launches."""
    of = code.cases[case]
    return of.error, [[(code.family(d), code.name(d)) if d != "host" else d for d in x.split()] for x in of.launches]


def _replaced(was: Sequence[str], found: Sequence[str]) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    if len(was) == len(found):
        yield was, found
        return
    for how, a, b, c, d in difflib.SequenceMatcher(None, was, found, autojunk=False).get_opcodes():
        if how == "replace":
            yield was[a:b], found[c:d]


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.decode().strip())
    return done.stdout.decode().strip()


def left_main_at() -> str:
    """The commit where this branch left main; the last commit if there is no main."""
    known = subprocess.run(["git", "rev-parse", "-q", "--verify", "main"], cwd=ROOT, capture_output=True, check=False)
    return "HEAD" if known.returncode else git("merge-base", "main", "HEAD")


def kept_in() -> Path:
    """Where the code of revisions is kept: beside what is installed for this tree."""
    here = ROOT / ".venv"
    return here / "generated" if here.is_dir() else Path(tempfile.gettempdir()) / f"dovetail-generated-{os.getuid()}"


def generate(tree: Path, tests: Path, folder: Path, devices: Sequence[str], *, quick: bool, pattern: str) -> None:
    """Generate the code of a tree by the cases and the tool of another one, or of itself."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DOVETAIL_")}
    environment |= {"DOVETAIL_CACHE": "off", "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tests)])}
    command = [sys.executable, "-m", "tests.codegen.dump", str(folder), "--devices", ",".join(devices)]
    command += [*(["--quick"] if quick else []), "--graphs", pattern]
    done = subprocess.run(command, cwd=tests, env=environment, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(f"no code was generated by {tree}")
    package = Path(done.stdout.decode().splitlines()[-1])
    assert package.is_relative_to(tree / "src"), f"{package} is not of {tree}"


def unpacked(commit: str, folder: Path) -> Path:
    """The tree of a commit."""
    done = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(fileobj=BytesIO(done.stdout)) as file:
        file.extractall(folder, filter="data")
    return folder


class Revision:
    """The code that a commit generates, kept from one call to the next."""

    def __init__(self, commit: str) -> None:
        self.commit = commit
        has_own = git("ls-tree", "--name-only", commit, str(DUMP))
        # A commit without the tool is compared by the tool and the cases of this tree.
        own = [ROOT / "tests/codegen" / n for n in ("dump.py", "cases.py", "families.py", "normal.py", "corpus.txt")]
        borrowed = "" if has_own else "-" + hashlib.blake2b(b"".join(p.read_bytes() for p in own)).hexdigest()[:12]
        self.has_own = bool(has_own)
        self.folder = kept_in() / f"{commit}{borrowed}"

    def code(self, device: str, *, quick: bool, pattern: str) -> Path | None:
        """The kept code of a device, which has at least the cases that are asked for."""
        places = [self.folder, *([self._part(quick=True, pattern="*")] if quick else []), self._part(quick, pattern)]
        return next((at / f"{device}.zip" for at in places if (at / f"{device}.zip").is_file()), None)

    def _part(self, quick: bool, pattern: str) -> Path:
        if pattern == "*":
            return self.folder / "quick" if quick else self.folder
        return self.folder / hashlib.blake2b(f"{quick} {pattern}".encode()).hexdigest()[:12]

    def make(self, devices: Sequence[str], *, quick: bool, pattern: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            tree, made = unpacked(self.commit, Path(folder, "tree")), Path(folder, "made")
            generate(tree, tree if self.has_own else ROOT, made, devices, quick=quick, pattern=pattern)
            at = self._part(quick, pattern)
            at.mkdir(parents=True, exist_ok=True)
            for file in made.iterdir():
                # Another process may keep the same.
                there = at / f"{file.name}.{os.getpid()}"
                shutil.copyfile(file, there)
                there.replace(at / file.name)
        others = sorted(kept_in().iterdir(), key=lambda p: p.stat().st_mtime, reverse=True)
        for old in others[KEPT:]:
            shutil.rmtree(old, ignore_errors=True)


def compared(revision: str, devices: Sequence[str], *, quick: bool, pattern: str, jobs: int, now: Path) -> Revision:
    """Generate what is not kept, and the code of this tree into a folder."""
    base = Revision(git("rev-parse", f"{revision}^{{commit}}"))
    with ThreadPoolExecutor(jobs) as pool:
        waiting: list[Future[None]] = []
        for group in GROUPS:
            some = [device for device in group if device in devices]
            missing = [device for device in some if base.code(device, quick=quick, pattern=pattern) is None]
            if some:
                waiting.append(pool.submit(generate, ROOT, ROOT, now, some, quick=quick, pattern=pattern))
            if missing:
                waiting.append(pool.submit(base.make, missing, quick=quick, pattern=pattern))
        for one in waiting:
            one.result()
    return base


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", nargs="?", help="where the branch left main by default")
    parser.add_argument("--quick", action="store_true", help="a few graphs for a few devices")
    parser.add_argument("--devices", help=f"some of {', '.join(d for group in GROUPS for d in group)}")
    parser.add_argument("--only", default="", metavar="FAMILY", help="compare the kernels of one family")
    parser.add_argument(
        "--graphs", default="*", metavar="PATTERN", help="generate graphs whose names match, as attention:*"
    )
    parser.add_argument(
        "--diff", nargs="?", type=int, const=3, default=0, metavar="N", help="show the first N differences"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    options = parser.parse_args()
    every = [device for group in GROUPS for device in group]
    devices = options.devices.split(",") if options.devices else list(QUICK) if options.quick else every
    if unknown := set(devices) - set(every):
        parser.error(f"no device {', '.join(sorted(unknown))}")
    differs = False
    with tempfile.TemporaryDirectory() as folder:
        how: dict[str, Any] = {"quick": options.quick, "pattern": options.graphs}
        base = compared(options.revision or left_main_at(), devices, jobs=options.jobs, now=Path(folder), **how)
        print(f"before is {git('log', '-1', '--format=%h %s', base.commit)}")
        for device in devices:
            before = base.code(device, **how)
            assert before is not None, "it was made"
            found = Difference(Code(before), Code(Path(folder, f"{device}.zip")), options.only, options.graphs)
            for line in (*found.lines(device), *found.diffs(device, options.diff)):
                print(line)
            if found.more:
                print(f"  {len(found.more)} graphs that were not there before: {', '.join(found.more[:3])}")
            differs |= bool(found)
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
