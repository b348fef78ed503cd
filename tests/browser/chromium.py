"""A headless Chromium, driven over a pipe by the DevTools protocol: no dependency, no port."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_PATIENCE = 60.0
_ON_3_AND_4 = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The browser reads commands from descriptor 3 and answers on 4: this puts them there and becomes the browser."""


def find_chromium() -> str | None:
    """The path of an installed Chromium or Chrome, or None."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


class Refused(AssertionError):
    """The browser answered with an error, or not at all."""


class Chromium:
    """One browser with one page. Used as a context; what it writes lies in a folder of the caller's."""

    def __init__(self, program: str, folder: Path, size: tuple[int, int] = (1440, 900)) -> None:
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        options = [
            "--headless=new",
            "--remote-debugging-pipe",
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={size[0]},{size[1]}",
            "--no-first-run",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--disable-background-networking",
            "--force-device-scale-factor=1",
        ]
        if os.geteuid() == 0:
            options.append("--no-sandbox")
        with (folder / "chromium.log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _ON_3_AND_4, str(commands), str(answers), program, *options, "about:blank"],
                pass_fds=(commands, answers),
                stdout=log,
                stderr=log,
            )
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        try:
            self._attach()
            self.resize(*size)
        except BaseException:
            self.close()
            raise

    def _attach(self) -> None:
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; events that come in between are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + _PATIENCE
        while True:
            answer = self._receive(until)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise Refused(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(until - time.monotonic(), 0))
            read = os.read(self._read, 1 << 20) if ready else b""
            if not read:
                raise Refused("the browser does not answer")
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(b"\0")
        return cast("dict[str, Any]", json.loads(message))

    def resize(self, width: int, height: int) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, **features: str) -> None:
        """What the system is said to like, as prefers_color_scheme="dark"."""
        listed = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.send("Emulation.setEmulatedMedia", features=listed)

    def open(self, path: Path) -> None:
        """Open a file, and wait until its own script has come to its end."""
        address = path.resolve().as_uri()
        self.events.clear()
        self.send("Page.navigate", url=address)
        self.wait(f"location.href === {json.dumps(address)} && document.readyState === 'complete'")

    def eval(self, expression: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise Refused(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + _PATIENCE
        while self.eval(f"Boolean({condition})") is not True:
            if time.monotonic() > until:
                raise Refused(f"never: {condition}")
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        return str(self.eval(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def point(self, x: float, y: float, kind: str = "mouseMoved", **more: Any) -> None:
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        """Press and let go where a person would."""
        self.point(x, y)
        self.point(x, y, "mousePressed", button="left", clickCount=1)
        self.point(x, y, "mouseReleased", button="left", clickCount=1)

    def click_on(self, selector: str) -> None:
        """Click the middle of an element, which has to be in sight."""
        found = self.eval(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); if (!e) return null;"
            "e.scrollIntoView({block: 'nearest'}); const b = e.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        if found is None:
            raise Refused(f"there is no {selector}")
        self.click(*found)

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def put(self, selector: str, value: str) -> None:
        """Give a field a value, and tell the page as typing or choosing would."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.eval(f"{found}.value = {json.dumps(value)}")
        for event in ("input", "change"):
            self.eval(f"{found}.dispatchEvent(new Event({json.dumps(event)}, {{bubbles: true}}))")

    def press(self, key: str, *, text: str = "") -> None:
        """Press a key; `text` is what it writes."""
        written = text or (key if len(key) == 1 else "")
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **({"text": written} if written else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def print(self, path: Path) -> None:
        """The page on paper."""
        made = self.send("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(made["data"]))

    def requests(self) -> Sequence[str]:
        """Every address that was asked for since the page was opened."""
        asked = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [e["params"]["request"]["url"] for e in asked]

    def complaints(self) -> list[str]:
        """Errors and warnings of the page: exceptions, the console, what its policy refused."""
        self.eval("0")
        found: list[str] = []
        for event in self.events:
            parameters = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(json.dumps(parameters["exceptionDetails"])[:2000])
            if event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
                found.append(json.dumps(parameters["args"])[:2000])
            if event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(parameters["entry"]["text"])
        return found
