"""Build the wheel and the sdist, check them, and use each in fresh environments of every Python that is here.

    python -m tests.wheel [--pythons python3.11 python3.12] [--out dist]

`make wheel` runs it, and so does CI before a release.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")


def fresh(folder: Path, python: str = sys.executable) -> Path:
    """Return the Python of a new environment."""
    if python == sys.executable:
        venv.create(folder, with_pip=True)
    else:
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def pip(python: Path, *args: str) -> None:
    subprocess.run([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *args], check=True)


def built(out: Path, tools: Path) -> tuple[Path, Path]:
    """Return the wheel and the sdist, built in an environment of their own, the wheel from the sdist."""
    pip(tools, "build", "twine")
    shutil.rmtree(out, ignore_errors=True)
    written = ROOT / "src" / "dovetail" / "version.txt"
    was_there = written.exists()
    subprocess.run([str(tools), "-m", "build", "--outdir", str(out), str(ROOT)], check=True, stdout=subprocess.DEVNULL)
    if not was_there:
        written.unlink()  # a checkout that pip did not install has no version
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    subprocess.run([str(tools), "-m", "twine", "check", "--strict", str(wheel), str(sdist)], check=True)
    return wheel, sdist


def usable(names: Sequence[str]) -> Iterator[str]:
    """Yield those Pythons that are here and run; say which are not."""
    for name in names:
        path = shutil.which(name)
        tried = [path, "-c", "import sys; print(sys.version.split()[0])"] if path else ["false"]
        if subprocess.run(tried, capture_output=True, check=False).returncode == 0 and path:
            yield path
        else:
            print(f"skipped: {name} is not installed")


def megabytes(site: Path) -> float:
    return sum(path.stat().st_size for path in site.rglob("*") if path.is_file() and path.suffix != ".pyc") / 1e6


def used(package: Path, python: str, version: str, folder: Path) -> str:
    """Install a package in a fresh environment, use it, and return what that took."""
    here = fresh(folder / "environment", python)
    before = {path.name for path in site(here).iterdir()}
    pip(here, str(package))
    size = sum(megabytes(path) if path.is_dir() else 0 for path in site(here).iterdir() if path.name not in before)
    script = Path(__file__).with_name("smoke.py")
    done = subprocess.run(
        [str(here), "-W", "error", str(script), version], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{package.name} does not work with {python}:\n{done.stdout}{done.stderr}")
    took = json.loads(done.stdout.splitlines()[-1])
    seconds = f"import {took['import_seconds']} s, first report {took['explain_seconds']} s"
    return f"{package.name}: {Path(python).name} {size:.0f} MB installed with what it needs, {seconds}"


def site(python: Path) -> Path:
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.run([str(python), "-c", asked], capture_output=True, text=True, check=True).stdout.strip())


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.wheel", description=__doc__)
    parser.add_argument("--pythons", nargs="+", default=PYTHONS, metavar="PYTHON")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        wheel, sdist = built(options.out, fresh(Path(folder) / "tools"))
    version = wheel.name.split("-")[1]
    print(f"{wheel.name} {wheel.stat().st_size / 1e6:.1f} MB, {sdist.name} {sdist.stat().st_size / 1e6:.1f} MB")
    pythons = list(usable(options.pythons))
    if not pythons:
        raise SystemExit("none of the Pythons is installed")
    for package, python in [*((wheel, p) for p in pythons), (sdist, pythons[0])]:
        with tempfile.TemporaryDirectory() as folder:
            print(used(package, python, version, Path(folder)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
