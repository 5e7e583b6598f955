"""An empty folder, and commands called in this process."""

import pytest

from hocket.cli.main import main


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Change to an empty folder, and print without wrapping lines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.fixture
def call(capsys):
    """Return a function that runs a command: exit code and standard error."""

    def run(*words):
        code = main([str(word) for word in words])
        return code, capsys.readouterr().err

    return run
