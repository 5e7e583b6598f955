"""Cross-entropy and errors, for classes of samples and for tokens of sequences."""

import pytest
import torch
import torch.nn.functional as F

from hocket.signals.losses import count_errors, cross_entropy

torch.manual_seed(0)
SCORES_BC = torch.randn(6, 4)
SCORES_BTC = torch.randn(2, 3, 4)


def test_samples():
    targets = torch.tensor([0, 1, 2, 3, 0, 1])
    assert torch.equal(cross_entropy(SCORES_BC, targets), F.cross_entropy(SCORES_BC, targets))


def test_tokens_are_all_counted_equally():
    targets = torch.tensor([[0, 1, 2], [3, 0, 1]])
    by_hand = F.cross_entropy(SCORES_BTC.transpose(1, 2), targets)
    torch.testing.assert_close(cross_entropy(SCORES_BTC, targets), by_hand)


@pytest.mark.parametrize("scores", [SCORES_BC, SCORES_BTC])
def test_errors_are_counted(scores):
    right = scores.argmax(-1)
    assert count_errors(scores, right) == (0, 6)
    labels = right.clone().flatten()
    labels[:2] = (labels[:2] + 1) % 4
    assert count_errors(scores, labels.view_as(right)) == (2, 6)


@pytest.mark.parametrize(
    ("output", "targets"),
    [
        (SCORES_BC, torch.randn(6)),
        (SCORES_BC, torch.randn(6, 4)),
        (SCORES_BC, torch.zeros(6, 4, dtype=torch.int64)),
        ((SCORES_BC, SCORES_BC), torch.zeros(6, dtype=torch.int64)),
        (SCORES_BC, {"targets": torch.zeros(6, dtype=torch.int64)}),
    ],
)
def test_without_class_indices_no_errors_are_counted(output, targets):
    assert count_errors(output, targets) is None
