"""Uses an installed dovetail as a newcomer would; the Python of a fresh environment runs it, outside of the tree.

    python smoke.py VERSION

It prints one line of JSON: seconds of the import and of the first report. An error ends it with a traceback.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

SMALL = "bert:layers=2,hidden=32,heads=4,inner=64,vocabulary=50,positions=16,batch=1,seq=8"


def import_seconds() -> float:
    started = time.perf_counter()
    import_module("dovetail")
    return time.perf_counter() - started


def check_files(version: str) -> None:
    import dovetail

    here = Path(dovetail.__file__).parent
    assert "site-packages" in here.parts, f"{here} is not what was installed"
    assert dovetail.__version__ == importlib.metadata.version("dovetail-ml") == version, dovetail.__version__
    for name in ("py.typed", "report/html/summary.js", "version.txt"):
        assert (here / name).is_file(), f"the wheel lacks {name}"


def explain_seconds() -> float:
    import dovetail

    started = time.perf_counter()
    report = dovetail.explain(dovetail.models.bert(batch=1, seq=128))
    seconds = time.perf_counter() - started
    assert report.count("attention") == 6, report
    return seconds


def check_results() -> None:
    """Run a layer on every target of this system, and judge it by NumPy in float64."""
    import numpy as np

    import dovetail

    builder = dovetail.Builder("layer")
    x = builder.input("x", dovetail.dtypes.f32["rows", 64])
    w, b = builder.param("w", dovetail.dtypes.f32[64, 32]), builder.param("b", dovetail.dtypes.f32[32])
    builder.output("y", dovetail.ops.relu(x @ w + b))
    generator = np.random.default_rng(0)
    params = {"w": generator.normal(size=(64, 32)).astype("f4"), "b": generator.normal(size=32).astype("f4")}
    fed = generator.normal(size=(5, 64)).astype("f4")
    right = np.maximum(fed.astype("f8") @ params["w"] + params["b"], 0)
    for target in ("reference",) if sys.platform == "win32" else ("cpu", "reference"):
        program = dovetail.compile(builder.graph(), params=params, target=target)
        np.testing.assert_allclose(program(x=fed)["y"], right, rtol=1e-5, atol=1e-5)


def check_commands(version: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        said = command("explain", SMALL, "--html", str(page))
        assert "FUSED" in said and page.stat().st_size > 100_000, said
    assert command("--version") == f"dovetail {version}\n"
    doctor = command("doctor")
    assert "reference        runs here" in doctor and "[test]" not in doctor, doctor


def command(*args: str) -> str:
    done = subprocess.run([sys.executable, "-m", "dovetail", *args], capture_output=True, encoding="utf-8", check=True)
    return done.stdout


def main(version: str) -> None:
    imported = import_seconds()
    check_files(version)
    explained = explain_seconds()
    check_results()
    check_commands(version)
    print(json.dumps({"import_seconds": round(imported, 2), "explain_seconds": round(explained, 2)}))


if __name__ == "__main__":
    main(sys.argv[1])
