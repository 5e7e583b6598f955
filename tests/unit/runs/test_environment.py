"""Memory that a process has held, wherever the system tells it."""

from hocket.runs import environment


def test_the_peak_is_told_where_the_status_has_none(tmp_path, monkeypatch):
    """As under gVisor."""
    (tmp_path / "status").write_text("VmRSS:\t1024 kB\n")
    monkeypatch.setattr(environment, "STATUS", tmp_path / "status")
    assert environment.peak_mib() > 1
