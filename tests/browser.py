"""A real headless Chromium for tests of pages: chromedriver's HTTP protocol, nothing installed.

https://www.w3.org/TR/webdriver2/ says what the requests are; `goog/cdp/execute` is Chromium's own.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def missing() -> str:
    """Why there is no browser here; empty where there is one."""
    if any(map(shutil.which, _CHROMIUM)) and shutil.which("chromedriver"):
        return ""
    return "no chromium and chromedriver on PATH"


class Browser:
    """One window. Use it as a context: it ends what it started."""

    def __init__(self, folder: Path) -> None:
        binary = next(filter(None, map(shutil.which, _CHROMIUM)))
        port_file = folder / "chromedriver.log"
        with port_file.open("wb") as log:
            self._driver = subprocess.Popen(
                [str(shutil.which("chromedriver")), "--port=0"],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"HOME": str(folder), "TMPDIR": str(folder)},
            )
        try:
            self._base = f"http://127.0.0.1:{self._port(port_file)}/session"
            arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
            options = {
                "goog:chromeOptions": {"binary": binary, "args": arguments},
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }
            wanted = {"capabilities": {"alwaysMatch": options}}
            self._base += f"/{self._call('', wanted)['sessionId']}"
        except BaseException:
            self._driver.kill()
            raise

    def _port(self, log: Path) -> int:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self._driver.poll() is None:
            words = log.read_text(errors="replace").split("started successfully on port ")
            if len(words) > 1:
                return int(words[1].split(".")[0])
            time.sleep(0.05)
        raise RuntimeError(f"chromedriver did not start: {log.read_text(errors='replace')}")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(self._base, method="DELETE"), timeout=10)
        finally:
            self._driver.terminate()
            self._driver.wait(10)

    def _call(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self._base + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.loads(error.read())["value"]["message"]) from None

    def emulate(self, width: int, height: int = 900, *, dark: bool = False, print_: bool = False):
        """A window of this many CSS pixels, a color scheme, a medium."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        medium = "print" if print_ else ""
        self._devtools("Emulation.setEmulatedMedia", {"media": medium, "features": [scheme]})

    def _devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        return self._call("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, path: Path) -> None:
        """Load a file and wait until it is there."""
        self._call("/url", {"url": path.as_uri()})

    def run(self, script: str) -> Any:
        """What a JavaScript function body returns."""
        return self._call("/execute/sync", {"script": script, "args": []})

    def wait(self, script: str, seconds: float = 20) -> Any:
        """What a function body returns once that is something, or at last."""
        deadline = time.monotonic() + seconds
        while not (found := self.run(script)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def point(self, x: float, y: float) -> None:
        """Move the mouse to a place of the window."""
        move = {"type": "pointerMove", "duration": 0, "x": int(x), "y": int(y)}
        mouse = {"type": "pointer", "id": "mouse", "actions": [move]}
        self._call("/actions", {"actions": [mouse]})

    def logged(self, kind: str) -> list[dict[str, Any]]:
        """Entries since the last call: `browser` (the console) or `performance` (DevTools)."""
        found: list[dict[str, Any]] = self._call("/se/log", {"type": kind})
        return found

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG file."""
        picture = self._devtools("Page.captureScreenshot", {"captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(picture["data"]))
