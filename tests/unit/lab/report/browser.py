"""A headless Chromium, driven through the pipe of its DevTools protocol."""

import itertools
import json
import os
import select
import shutil
import subprocess
import time

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE_S = 60


class Browser:
    """One page of a browser; everything that its console says is in `complaints`."""

    def __init__(self, profile):
        inward, self._write = os.pipe()
        self._read, outward = os.pipe()
        # Chromium reads file descriptor 3 and writes 4. Bash knows descriptors above 9.
        command = f'exec "$@" 3<&{inward} 4>&{outward}'
        words = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", command, "bash", *words],
            pass_fds=(inward, outward),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(inward)
        os.close(outward)
        self._ids, self._buffer, self._events = itertools.count(1), b"", []
        self._session = None
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method, **params):
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self._events.append(answer)

    def _next(self):
        end = time.monotonic() + PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            received = os.read(self._read, 2**20)
            assert received, "the browser has ended"
            self._buffer += received
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def open(
        self, file, width=1200, height=900, scheme="light", media="", motion="no-preference"
    ):
        """Load a file or an address at a width, in a colour scheme, with or without motion."""
        self._events.clear()
        self.resize(width, height)
        values = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        features = [{"name": name, "value": value} for name, value in values.items()]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.call("Page.navigate", url=file if isinstance(file, str) else file.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._events.append(self._next())

    def resize(self, width, height=900):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def press(self, key):
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def run(self, expression):
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_until(self, expression):
        """Wait until an expression is true in the page, which may be loaded again meanwhile."""
        end = time.monotonic() + PATIENCE_S
        while not self.run(f"document.readyState === 'complete' && ({expression})"):
            assert time.monotonic() < end, f"not true: {expression}"
            time.sleep(0.1)

    def click(self, selector, number=0):
        """Press the mouse on an element, as a user does."""
        x, y = self.run(
            f"(e => {{ e.scrollIntoView({{block: 'center'}});"
            f" const b = e.getBoundingClientRect();"
            f" return [b.x + b.width / 2, b.y + b.height / 2]; }})"
            f"(document.querySelectorAll({selector!r})[{number}])"
        )
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    @property
    def complaints(self):
        """Errors and warnings of the console, and exceptions."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event for event in self._events if event.get("method") in kinds]

    @property
    def requests(self):
        """Addresses that the page has asked for."""
        sent = [e for e in self._events if e.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]
