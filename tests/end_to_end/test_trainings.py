"""Whole trainings from the command line, on text and on real images."""

import json
import os
from pathlib import Path

import pytest
import torch

import hocket
from hocket.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
DATA_DIR = Path(os.environ.get("HOCKET_DATA", ROOT.parent / "shared" / "data"))


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Return a function that runs `hocket train`: summary and weights that it writes."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        try:
            code = main(["train", *map(str, words), "--run-dir", "mine"])
        except SystemExit as end:
            code = end.code
        assert code == 0
        weights = torch.load("mine/network.pt", weights_only=True)
        return json.loads(Path("mine/summary.json").read_text()), weights

    return run


def test_a_transformer_learns_a_text(tmp_path, trained):
    (tmp_path / "text.txt").write_text("she sells sea shells by the sea shore. " * 60)
    summary, weights = trained(
        *("--network", "gpt:width=32,depth=2,heads=2"),
        *("--data", "text:context=16", "--data-dir", "text.txt", "--batch-size", 8),
        *("--optimizer", "AdamW:lr=0.002", "--epochs", 5),
    )
    first, *_, last = (epoch["evaluation"] for epoch in summary["epochs"])
    assert last["loss"] < first["loss"]
    assert last["error"] < 0.5, "the most frequent character is 1 in 6"
    vocabulary = len(set((tmp_path / "text.txt").read_text()))
    network = hocket.zoo.gpt(vocab=vocabulary, context=16, width=32, depth=2, heads=2)
    network.load_state_dict(weights, strict=True)


@pytest.mark.skipif(
    not (DATA_DIR / "cifar10").is_dir(),
    reason="no folder cifar10 in HOCKET_DATA; set it to a folder with the parquet files",
)
def test_real_images_from_a_recipe(trained):
    summary, weights = trained(
        *("--recipe", "fdg-cifar", "--network", "resnet8", "--plan", "layer2_0"),
        *("--data", "cifar10:subset=512", "--data-dir", DATA_DIR, "--epochs", 1),
        *("--hold-out", 0.5),
    )
    (epoch,) = summary["epochs"]
    assert (epoch["samples"], epoch["evaluation"]["samples"]) == (256, 256)
    assert summary["cuts"] == ["layer2_0"]
    assert [stage["delay"] for stage in summary["stages"]] == [2, 0]
    assert 0 < epoch["evaluation"]["error"] < 0.95
    hocket.zoo.resnet8(num_classes=10).load_state_dict(weights, strict=True)
