"""Pages to look at, and a browser to look with where there is one."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import autopar
from autopar.api import build_problem, problem_of
from autopar.costmodel.spec.plan import Plan
from autopar.report.subject import Subject, subject_of_plan

CHROMIUM = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip


@pytest.fixture(scope="session")
def plan() -> Plan:
    """A small plan with a pipeline, runners-up and constraints."""
    return autopar.plan("gpt-22b", gpus=16, fix={"pp": 4}, maximum={"tp": 4}, forbid=["cp"], top=4)


@pytest.fixture(scope="session")
def subject(plan: Plan) -> Subject:
    return subject_of_plan(plan, problem_of(plan))


@pytest.fixture(scope="session")
def comparison() -> autopar.comparison.Comparison:  # type: ignore[name-defined]
    """Three strategies of one question, one of which does not fit."""
    from autopar.io.flags import make_strategy

    problem, _ = build_problem("gpt-22b", gpus=16)
    texts = ({"tp": 4, "pp": 4}, {"tp": 8, "pp": 2}, {"tp": 1, "zero": 1})
    return autopar.compare([(problem, make_strategy(values, world_size=16)) for values in texts], price_per_gpu_hour=2, tokens=1e12)


@dataclass(frozen=True, slots=True)
class Browser:
    """A session of the WebDriver protocol, without a client library."""

    address: str

    def call(self, command: str, **arguments: object) -> Any:
        request = urllib.request.Request(f"{self.address}/{command}", json.dumps(arguments).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def close(self) -> None:
        """End the session and its browser, which would outlive its driver."""
        urllib.request.urlopen(urllib.request.Request(self.address, method="DELETE"), timeout=60).close()

    def open(self, path: Path, *, width: int, dark: bool = False) -> None:
        """The page at ``width`` CSS pixels, as a reader of light or dark pages sees it."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("goog/cdp/execute", cmd="Emulation.setDeviceMetricsOverride", params=metrics)
        self.call("goog/cdp/execute", cmd="Emulation.setEmulatedMedia", params={"features": scheme})
        self.call("url", url=path.resolve().as_uri())

    def script(self, text: str) -> Any:
        return self.call("execute/sync", script=text, args=[])

    def log(self) -> list[dict[str, Any]]:
        """What the console said since the last call."""
        messages: list[dict[str, Any]] = self.call("se/log", type="browser")
        return messages

    def screenshot(self) -> bytes:
        parameters = {"format": "png", "captureBeyondViewport": True}
        return base64.b64decode(self.call("goog/cdp/execute", cmd="Page.captureScreenshot", params=parameters)["data"])

    def printed(self) -> bytes:
        return base64.b64decode(self.call("print"))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium and chromedriver on this machine")
    folder = tmp_path_factory.mktemp("chromium")
    with subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            session = _session(process, [*CHROMIUM, f"--user-data-dir={folder}"], chromium)
            yield session
            session.close()
        finally:
            process.terminate()


def _session(process: subprocess.Popen[str], arguments: list[str], chromium: str) -> Browser:
    assert process.stdout is not None
    line = ""
    deadline = time.monotonic() + 30
    while "on port" not in line or "successfully" not in line:
        line = process.stdout.readline()
        assert line, "chromedriver ended"
        assert time.monotonic() < deadline
    server = f"http://127.0.0.1:{line.strip().rstrip('.').split()[-1]}"
    options = {"goog:chromeOptions": {"binary": chromium, "args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}
    session = Browser(address=server).call("session", capabilities={"alwaysMatch": options})["sessionId"]
    return Browser(address=f"{server}/session/{session}")
