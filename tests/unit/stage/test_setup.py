"""Options that no training can have are refused together, each with what was found."""

import pytest

from contract.small import sgd
from hocket.errors import OptionError
from hocket.methods import BP
from hocket.signals.losses import cross_entropy
from hocket.stage.setup import Setup


def test_all_problems_are_in_one_error():
    with pytest.raises(OptionError) as caught:
        Setup(
            method=BP(),
            loss=5,
            optimizer="SGD",
            scheduler=lambda: None,
            seed=-1,
            timeout_s=20.0,
            slow_timeout_s=10.0,
            replicas=2,
            check_every=4,
            on_nan="skip",
            precision="fp16",
            compile="inductor",
            batchnorm="shared",
        )
    title, *problems = str(caught.value).splitlines()
    assert title.endswith(":")
    begins = [
        "seed is -1",
        "slow_timeout_s is 10",
        "on_nan is 'skip', and 2 replicas",
        "batchnorm is 'shared'",
        "check_every is 4",
        "precision is 'fp16'",
        "loss is 5",
        "optimizer is an object of str",
        "scheduler cannot be called",
    ]
    assert len(problems) == len(begins)
    for problem, begin in zip(problems, begins, strict=True):
        assert problem.startswith(f"  - {begin}")


def test_values_of_other_types_are_not_compared():
    with pytest.raises(OptionError) as caught:
        Setup(method=BP(), loss=cross_entropy, optimizer=sgd, slow_timeout_s="long", replicas=0)
    _, *problems = str(caught.value).splitlines()
    assert len(problems) == 2
    assert "slow_timeout_s is 'long'" in problems[0]
    assert "replicas is 0" in problems[1]
