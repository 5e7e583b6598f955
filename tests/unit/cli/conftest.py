"""An empty folder, and commands called in this process."""

import pytest

from hocket.cli.main import main


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Change to an empty folder, and print without wrapping lines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    return tmp_path


@pytest.fixture
def call(capsys):
    """Return a function that runs a command: exit code, standard output, standard error."""

    def run(*words):
        return main([str(word) for word in words]), *capsys.readouterr()

    return run


@pytest.fixture
def refused(call, tmp_path):
    """Return a function that runs a command that is refused and writes nothing: its message."""

    def run(*words):
        before = sorted(str(path) for path in tmp_path.rglob("*"))
        code, out, err = call(*words)
        assert (code, out) == (2, ""), err
        assert err.startswith("error: ")
        assert err.count("error: ") == 1
        assert "Traceback" not in err
        assert sorted(str(path) for path in tmp_path.rglob("*")) == before
        return err

    return run
