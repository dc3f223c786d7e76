"""Chromium, without a window and without a network, steered through its DevTools pipe to look at a page."""

from __future__ import annotations

import base64
import json
import os
import re
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--remote-debugging-pipe", "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip
PATIENCE = 120.0  # seconds; a machine may be busy


def found() -> str | None:
    """The browser's program; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser with one page. What the page says to the console and asks for is kept."""

    def __init__(self, folder: Path) -> None:
        program = found()
        assert program is not None
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # The browser reads its commands from descriptor 3 and answers on 4.
        script = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", script, program, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._left, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a command; what happens meanwhile goes to `events`."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser says nothing"
            piece = os.read(self._read, 2**16)
            assert piece, "the browser is gone"
            self._left += piece
        answer, _, self._left = self._left.partition(b"\0")
        return json.loads(answer)

    def show(self, path: Path, *, width: int, dark: bool, height: int = 900, media: str = "screen") -> None:
        """Open the file in a window of this width, of a phone where it is narrow, wait until it is there, and unfold it
        on a screen."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.events = []
        self.call("Page.navigate", url=path.as_uri())
        while not any(one.get("method") == "Page.loadEventFired" for one in self.events):
            self.events.append(self._next())
        if media == "screen":
            self.value("document.querySelectorAll('details').forEach(one => { one.open = true })")

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives on the page, as JSON."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def said(self) -> list[str]:
        """What the page wrote to the console or was logged about it."""
        return [
            json.dumps(one["params"])
            for one in self.events
            if one.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        ]

    def asked_for(self) -> list[str]:
        """The addresses that were asked for."""
        sent = (one["params"] for one in self.events if one.get("method") == "Network.requestWillBeSent")
        return [one["request"]["url"] for one in sent]

    def paper_pages(self) -> int:
        """How many A4 pages the page takes on paper."""
        printed = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True)["data"]
        return len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(printed)))

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16000), "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))
