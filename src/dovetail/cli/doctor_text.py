"""What the doctor found, as text for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.report.paint import PLAIN, Line, Look, Piece, line, shown
from dovetail.report.text import bytes_text


def as_text(found: Mapping[str, Any], look: Look = PLAIN) -> str:
    """What was found, one thing a line, and at the end what can be added with its command."""
    here, python = found["machine"], found["python"]
    lines = [
        line(
            Piece(f"dovetail {found['dovetail']}", "strong"), f", Python {python['version']} at {python['executable']}"
        ),
        line(f"{here['system']} on {here['processor']}, {_cores(here)}, {_memory(here)}", hang=2),
        line(_processor(found["processor"]), hang=2),
        *gpu_lines(found["gpu"]),
        line(),
        line(Piece("packages", "strong")),
        *_packages(found["packages"]),
        line(),
        *_figures(found["calibration"], found["figures"], found["not_calibrated"], found["ignored_calibration"]),
        *mesh_lines(found["mesh"]),
        line(),
        _cache(found["cache"]),
        line(),
        line(Piece("targets", "strong")),
    ]
    for target in found["targets"]:
        verdict = "runs here" if target["runs"] else f"does not run here: {target['note']}"
        lines.append(line(f"  {target['target']:<16} ", Piece(verdict, "good" if target["runs"] else "warn"), hang=4))
    return shown([*lines, line(), *_missing(found["missing"])], look)


def _processor(here: Mapping[str, Any]) -> str:
    caches = ", ".join(f"L{level} {_size(size)}" for level, size in enumerate(here["caches"], 1)) or "caches unknown"
    bits, registers = here["vector_bits"], here["vector_registers"]
    can = "".join(f", {name}" for name in here["capabilities"])
    if here["amx"] not in (None, "granted"):
        can += f", AMX {'refused by the system' if here['amx'] == 'refused' else here['amx']}"
    llvm = here["llvm"].partition(" ")[0]
    return f"{here['cpu']}: {registers} vectors of {bits} bits ({bits // 32} × f32){can}, {caches}, LLVM {llvm}"


def gpu_lines(found: Mapping[str, Any]) -> list[Line]:
    """The GPU and its figures, or why there is none."""
    card, known = found["card"], found["calibration"]
    if card is None:
        return [line(f"no GPU: {found['reason']}", hang=2)]
    major, minor = card["capability"]
    clock, memory = card["clock_hertz"] / 1e9, card["memory_bytes"] / 2**30
    said = (
        f"{card['name']}: compute capability {major}.{minor} ({found['architecture']}), {card['multiprocessors']} "
        f"multiprocessors at {clock:.2f} GHz, {memory:.0f} GiB of memory at up to "
        f"{card['memory_bytes_per_second'] / 1e9:.0f} GB/s, L2 {_size(card['l2_bytes'])}, "
        f"driver of CUDA {card['driver']}"
    )
    library = line(f"  cuBLASLt {found['cublaslt']}", hang=4)
    if known is None:
        return [line(said, hang=2), library]
    flops = ", ".join(f"{dtype} {rate / 1e12:.1f}" for dtype, rate in known["flops"].items())
    measured = (
        f"  measured on {known['date']}: {known['bytes_per_second'] / 1e9:.0f} GB/s, a kernel "
        f"{known['launch_seconds'] * 1e6:.2f} µs, TFLOP/s of products: {flops}"
    )
    return [line(said, hang=2), line(measured, hang=4), library]


def _packages(packages: Sequence[Mapping[str, Any]]) -> list[Line]:
    """What is always needed one by one; what an extra asks for together."""
    lines: list[Line] = []
    extras: dict[str, list[str]] = {}
    for package in packages:
        version = package["version"]
        if package["extra"]:
            extras.setdefault(package["extra"], []).append(f"{package['name']} {version or '(not installed)'}")
        else:
            tone = "warn" if version is None else "plain"
            lines.append(line(f"  {package['name']:<16} ", Piece(f"{version or 'not installed':<14} ", tone), "needed"))
    lines += [line(f"  {f'[{name}]':<16} {', '.join(inside)}", hang=19) for name, inside in extras.items()]
    return lines


def _figures(calibration: Mapping[str, Any] | None, source: str, refused: str, ignored: str) -> list[Line]:
    """The figures that prices are made of."""
    lines = [line(Piece(f"not calibrated: {refused}", "warn"), hang=2)] if refused else []
    if ignored:
        lines.append(line(Piece(f"a stored calibration is ignored, of {ignored}", "warn"), hang=2))
    if calibration is None:
        return [*lines, line(f"calibration: {source}")]
    lines.append(line(f"calibration: measured on {calibration['date']} ({calibration['host']})", hang=2))
    for one in calibration["figures"]:
        levels = ", ".join(
            f"{read / 1e9:.0f} up to {_size(size)} ({passed / 1e9:.0f} from step to step)"
            for size, read, passed in one["levels"]
        )
        threads = f"{one['threads']:>3} thread{'s' if one['threads'] > 1 else ' '}"
        reach = f"GB/s: {levels}, {one['bytes'] / 1e9:.1f} beyond"
        step = f"a step {one['dispatch'] * 1e6:.2f} µs"
        bytes = f" ({one['int8'] / 1e9:.0f} of bytes)" if one["int8"] else ""
        lines.append(line(f"  {threads} {one['flops'] / 1e9:.0f} GFLOP/s{bytes}, {reach}, {step}", hang=4))
    return lines


def mesh_lines(found: Mapping[str, Any] | None) -> list[Line]:
    """The links of a mesh, or what measures them; nothing where none was asked for."""
    if found is None:
        return []
    known, refused = found["calibration"], found["not_calibrated"]
    mesh = ",".join(f"{axis}={size}" for axis, size in found["mesh"].items())
    lines = [line(Piece(f"not calibrated: {refused}", "warn"), hang=2)] if refused else []
    if known is None:
        return [*lines, line(f"mesh {mesh}: built-in; dovetail doctor --calibrate --mesh {mesh} measures it", hang=2)]
    lines.append(line(f"mesh {mesh}: measured on {known['date']} ({known['devices']})", hang=2))
    for axis, one in known["axes"].items():
        start, rate = one["link"]["start_seconds"] * 1e6, one["link"]["bytes_per_second"] / 1e9
        lines.append(line(f"  {axis:<6} a start {start:.1f} µs, {rate:.3g} GB/s, within {one['misfit']:.0%}", hang=4))
    return lines


def _cache(kept: Mapping[str, Any]) -> Line:
    if not kept["on"]:
        return line("compile cache: switched off")
    if kept["problem"]:
        return line("compile cache: ", Piece(str(kept["problem"]), "warn"), hang=2)
    programs = kept["entries"].get("program", 0)
    said = f"{kept['folder']}, {bytes_text(kept['bytes'])} of at most {bytes_text(kept['limit'])}"
    return line(f"compile cache: {programs} programs in {said}", hang=2)


def _missing(missing: Sequence[Mapping[str, str]]) -> list[Line]:
    if not missing:
        return [line(Piece("nothing is missing", "good"))]
    lines = [line(Piece("missing", "strong"))]
    for lack in missing:
        lines.append(line("  ", Piece(lack["what"], "warn"), f": {lack['gives']}", hang=4))
        lines.append(line(f"    add it with: {lack['add']}", hang=6))
    return lines


def _size(bytes: int) -> str:
    return f"{bytes >> 20} MiB" if bytes >= 1 << 20 else f"{bytes >> 10} KiB"


def _cores(here: dict[str, Any]) -> str:
    limit = here["cgroup_cores"]
    said = f"{here['cores']} of {here['cores_of_machine']} cores may be used"
    return said + (f", limited to {limit:g} by the cgroup" if limit is not None else "")


def _memory(here: dict[str, Any]) -> str:
    total, limit = here["memory_bytes"], here["cgroup_memory_bytes"]
    said = f"{total / 2**30:.1f} GiB of memory" if total is not None else "memory unknown"
    return said + (f", limited to {limit / 2**30:.1f} GiB by the cgroup" if limit is not None else "")


__all__ = ["as_text", "gpu_lines", "mesh_lines"]
