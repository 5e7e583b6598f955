"""The report that follows its runs: for this machine alone, and never older than its files."""

import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from hocket.cli.main import main
from hocket.errors import OptionError
from hocket_lab.report import live
from hocket_lab.report.live import MOST_CONNECTIONS, LiveReport
from unit.lab.report.browser import CHROMIUM, Browser
from unit.lab.report.made_runs import make_run


@pytest.fixture(autouse=True)
def queue(monkeypatch):
    """Let the kernel drop no connection that waits; it would come again after a second."""
    monkeypatch.setattr(LiveReport, "request_queue_size", 100)


@contextmanager
def served(*paths):
    with LiveReport(paths, port=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def get(server, path="", **headers):
    return read(urllib.request.Request(server.address + path, headers=headers))


def refusal(server, path="", **headers):
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(server, path, **headers)
    return refused.value.code, refused.value.read().decode()


@pytest.fixture
def bp(tmp_path):
    """The folder of a run, in a folder of runs."""
    return make_run(tmp_path / "bp", method="bp")


@contextmanager
def watching(*words):
    """Start `hocket watch`; ended by Ctrl-C it says so."""
    command = [sys.executable, "-m", "hocket", "watch", *map(str, words), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process.stderr
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert (process.returncode, said) == (0, "the report is no longer served\n")


def read(address):
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.read().decode()


def test_the_version_changes_with_the_files_and_stands_in_the_page(tmp_path):
    run = make_run(tmp_path / "study/runs/fdg", state=None)
    with served(tmp_path / "study", tmp_path / "study/runs") as server:
        version = get(server, "version")
        assert f'<meta name="version" content="{version}">' in get(server)
        assert get(server, "version") == version
        with (run / "metrics.jsonl").open("a") as metrics:
            metrics.write('{"kind": "epo')  # a line that is being written
        assert get(server, "version") != version
        assert "fdg" in get(server)


@pytest.mark.usefixtures("bp")
def test_folders_that_vanish_have_no_files_and_an_error_is_told_to_the_reader(
    tmp_path, monkeypatch
):
    scandir = os.scandir

    def vanish(path):
        if Path(path).name == "bp":
            raise FileNotFoundError(str(path))
        return scandir(path)

    with served(tmp_path) as server:
        before = get(server, "version")
        monkeypatch.setattr(os, "scandir", vanish)
        assert get(server, "version") != before
        monkeypatch.setattr("hocket_lab.report.live.find_runs", lambda paths: 1 / 0)
        code, text = refusal(server)
        assert (code, "ZeroDivisionError" in text) == (500, True)


def test_a_page_without_a_run_asks_again_and_a_folder_of_any_name_is_served(tmp_path):
    with served(tmp_path) as server:
        code, text = refusal(server)
        assert code == 503
        assert "there is no run to report" in text
        make_run(tmp_path / os.fsdecode(b"bad\xff"))
        assert get(server, "version")
        assert "bad?" in get(server)


@pytest.mark.usefixtures("bp")
def test_other_paths_names_ports_and_words_are_refused(tmp_path):
    with served(tmp_path) as server:
        assert refusal(server, "bp/run.json")[0] == 404
        code, text = refusal(server, Host="evil.example")
        assert (code, text) == (403, "this server answers to its own address only")
        assert refusal(server, Host="localhost")[0] == 403
        server.hosts.add("localhost:80")  # a port that browsers leave out
        assert "bp" in get(server, Host="localhost")
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(server.address, data=b"x", timeout=60)
        with urllib.request.urlopen(server.address) as answer:  # no other page can frame it
            assert answer.headers["X-Frame-Options"] == "DENY"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.usefixtures("bp")
def test_the_head_of_the_page_can_be_asked_for_alone(tmp_path):
    with served(tmp_path) as server, connect(server) as asking:
        host = f"127.0.0.1:{server.server_port}"
        asking.sendall(f"HEAD {server.root} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        head, _, body = asking.makefile("rb").read().partition(b"\r\n\r\n")
    assert (b" 200 OK" in head, body) == (True, b"")


@pytest.mark.usefixtures("bp")
def test_who_does_not_know_the_word_in_the_address_reads_nothing(tmp_path):
    with served(tmp_path) as server, served(tmp_path) as other:
        host, own = server.address.removesuffix(server.root), f"{server.root[:-2]}/"
        for path in ("/", "/version", other.root, f"{other.root}version", own):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                read(host + path)
        assert "bp" in get(server)


def connect(server):
    return socket.create_connection(server.server_address, timeout=60)


def test_a_silent_connection_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(live._Handler, "timeout", 0.2)
    with served(tmp_path) as server, connect(server) as silent:
        silent.sendall(b"GET / HT")
        assert silent.recv(1) == b""


@pytest.mark.usefixtures("bp")
def test_of_many_connections_the_oldest_are_ended(tmp_path):
    with served(tmp_path) as server, ExitStack() as stack:
        silent = [stack.enter_context(connect(server)) for _ in range(3 * MOST_CONNECTIONS)]
        assert "bp" in get(server)
        for each in silent[: 2 * MOST_CONNECTIONS + 1]:
            assert each.recv(1) == b""
        silent[-1].settimeout(0.1)
        with pytest.raises(TimeoutError):
            silent[-1].recv(1)


def test_a_port_that_is_taken_or_none_is_refused(tmp_path):
    with served(tmp_path) as server:
        for port in (server.server_port, 70000):
            with pytest.raises(OptionError, match=f"cannot listen on port {port} of 127.0.0.1"):
                LiveReport([tmp_path], port)


@pytest.mark.usefixtures("bp")
def test_a_browser_that_is_closed_while_it_waits_is_no_error(tmp_path, capfd):
    with served(tmp_path) as server:
        for _ in range(20):
            with socket.create_connection(server.server_address) as asking:
                host = f"Host: 127.0.0.1:{server.server_port}"
                asking.sendall(f"GET {server.root} HTTP/1.1\r\n{host}\r\n\r\n".encode())
                # No parting: what the server sends from here on is answered by a reset.
                asking.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert "bp" in get(server)
    assert "Traceback" not in capfd.readouterr().err


def test_the_command_waits_for_the_first_run_and_refuses_a_file(tmp_path, capsys):
    with watching(tmp_path / "runs") as told:
        assert re.search("runs' does not exist.*waits for the first", told.readline())
        address = re.search(r"(http://127\.0\.0\.1:\d+/[\w-]{22}/) ", told.readline())[1]
        with pytest.raises(urllib.error.HTTPError, match="503"):
            read(address)
        make_run(tmp_path / "runs/bp", method="bp")
        assert "bp" in read(address)
    (tmp_path / "file").touch()
    assert main(["watch", str(tmp_path / "file")]) == 2
    assert "file' is a file" in capsys.readouterr().err


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
def test_a_page_that_is_loaded_again_keeps_the_choices_of_its_reader(tmp_path):
    """A new run has the first group, and brings a table before the one that is sorted."""
    make_run(tmp_path / "runs/bp", method="bp", state=None)
    with closing(Browser(tmp_path / "profile")) as browser:
        with served(tmp_path / "runs") as server:
            browser.open(server.address)
            assert browser.run("document.querySelector('h1').textContent").startswith("1 run")
            browser.click("#theme")
            browser.click("table.sortable thead button", 12)
            browser.click("table.sortable thead button", 12)
            browser.click("[data-toggle]", 0)
            browser.click('[data-zoom="in"]', 0)
            window = "spanViews.find((view) => view.name.includes('bp')).chosen"
            zoomed = browser.run(window)
            assert zoomed[0] > 0
            make_run(tmp_path / "runs/a")
            browser.wait_until("document.querySelector('h1').textContent.startsWith('2 runs')")
            assert browser.run("document.querySelector('#follow').hidden")
            assert browser.run("document.documentElement.dataset.theme") == "dark"
            sorting = "[...document.querySelectorAll('[aria-sort=descending]')]"
            assert browser.run(f"{sorting}.map(head => head.textContent)") == ["state"]
            pressed = "[...document.querySelectorAll('[data-toggle]')].map(b => b.ariaPressed)"
            assert browser.run(pressed) == ["true", "false"]
            assert browser.run(window) == zoomed
            assert browser.complaints == []
        browser.wait_until("!document.querySelector('#follow').hidden")
