"""Results on the meta device are those of the functions, also when they are known already."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hocket.partition.parts import meta_functions
from hocket.partition.parts.meta_functions import MetaFunctions, run_on_meta
from hocket.partition.recording.torch_functions import tensor_leaves

X, Y, SCALAR = torch.zeros(3, 4), torch.zeros(4), torch.tensor(6)
CALLS = {
    "one": (torch.relu, (X,), {}),
    "method": (Tensor.relu, (X,), {}),
    "two": (torch.add, (X, Y), {"alpha": 2}),
    "the same twice": (torch.mul, (X, X), {}),
    "a named tuple": (torch.max, (X, 1), {}),
    "a list": (torch.cat, ([X, X],), {"dim": 1}),
    "a slice": (Tensor.__getitem__, (X, (slice(0, 2), ..., None)), {}),
    "strides": (Tensor.t, (X,), {}),
    "a type": (Tensor.to, (X, torch.float16), {}),
    "a mask": (F.dropout, (X,), {"p": 0.1, "training": True}),
    "no gradient": (torch.clone, (X.clone().requires_grad_(),), {}),
}


def describe(output):
    return [(type(t), t.shape, t.stride(), t.dtype, t.device) for t in tensor_leaves(output)]


@pytest.fixture
def runs(monkeypatch):
    """List that gets the name of each function that is really run."""
    runs = []

    def run(function, args, kwargs, operands):
        runs.append(function)
        return run_on_meta(function, args, kwargs, operands)

    monkeypatch.setattr(meta_functions, "run_on_meta", run)
    return runs


def run_twice(function, args, kwargs):
    """Return the results of two calls, and the operands that were changed in place."""
    functions = MetaFunctions()
    return [
        functions.run(function, args, kwargs, tensor_leaves(args, kwargs)) for _ in range(2)
    ]


@pytest.mark.parametrize(("function", "args", "kwargs"), CALLS.values(), ids=CALLS.keys())
def test_known_results_are_those_of_the_function(function, args, kwargs, runs):
    (first, changed), (second, changed_again) = run_twice(function, args, kwargs)
    assert runs == [function]
    assert changed == changed_again == []
    assert type(first) is type(second)
    assert describe(first) == describe(second)
    results = tensor_leaves(first, second)
    assert all(result.is_meta for result in results)
    assert len({id(result) for result in results}) == len(results)


# They depend on more than shapes and types, or are no new tensors.
COMPUTED = {
    "in place": (Tensor.add_, (X, 1), {}),
    "the operand itself": (Tensor.contiguous, (X.to("meta"),), {}),
    "a size": (Tensor.view, (X, SCALAR, 2), {}),
    "a part with an offset": (Tensor.__getitem__, (X, 1), {}),
    "a number": (Tensor.dim, (X,), {}),
    "sparse": (torch.clone, (torch.eye(2).to_sparse(),), {}),
    "an object": (lambda tensor, other: tensor + 1, (X, object()), {}),
    "no hash": (lambda tensor, other: tensor + 1, (X, slice([], None)), {}),
}


@pytest.mark.parametrize(("function", "args", "kwargs"), COMPUTED.values(), ids=COMPUTED.keys())
def test_all_else_is_computed_every_time(function, args, kwargs, runs):
    (first, changed), (second, changed_again) = run_twice(function, args, kwargs)
    assert runs == [function] * 2
    assert describe(first) == describe(second)
    assert len(changed) == len(changed_again) == (function is Tensor.add_)


@pytest.mark.parametrize("other", [1.0, True])
def test_equal_numbers_of_other_types_are_others(other):
    functions, ones = MetaFunctions(), torch.ones(2, dtype=torch.int64)
    results = [functions.run(torch.mul, (ones, n), {}, [ones])[0] for n in (1, other)]
    assert [r.dtype for r in results] == [(ones * n).dtype for n in (1, other)]


def on_numbers_only(function):
    """Return a function that has no kernel for meta tensors."""

    def run(tensor):
        if tensor.is_meta:
            raise NotImplementedError("no kernel")
        return function(tensor)

    run.__name__ = function.__name__
    return run


def test_a_function_without_a_kernel_for_meta_tensors_runs_on_numbers_once(runs):
    (first, changed), (second, _) = run_twice(on_numbers_only(torch.relu), (X.t(),), {})
    assert len(runs) == 1
    assert not changed
    expected = [(Tensor, (4, 3), (1, 4), torch.float32, torch.device("meta"))]
    assert describe(first) == describe(second) == expected


def decided(tensor):
    return torch.zeros(int(tensor.sum()) + 1)


@pytest.mark.parametrize(
    "function", [torch.unique, torch.rand_like, Tensor.t, Tensor.relu_, Tensor.dim, decided]
)
def test_results_that_depend_on_numbers_or_are_not_new_are_refused(function):
    with pytest.raises(NotImplementedError, match="no kernel"):
        run_twice(on_numbers_only(function), (X.clone(),), {})
