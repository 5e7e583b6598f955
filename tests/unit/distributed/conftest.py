"""Patience with the stores of this process, whose threads may stand still on a busy machine."""

import pytest

from hocket.distributed.failures import first_failure, store_client


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Wait for an answer and for a record; a test whose store gives none sets its own limit."""
    monkeypatch.setattr(store_client, "STORE_TIMEOUT_S", 60.0)
    monkeypatch.setattr(first_failure, "RECORD_TIMEOUT_S", 120.0)
