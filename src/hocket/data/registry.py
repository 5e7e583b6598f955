"""Data sets by name, with options that are checked before any file is read."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hocket.data.batches import Batches
from hocket.data.cifar import cifar10, cifar100
from hocket.data.dataset import Data
from hocket.data.dataset import hold_out as divide
from hocket.data.digits import digits
from hocket.data.images import folder
from hocket.data.mixing import Mix, MixedExamples
from hocket.data.synthetic import synthetic
from hocket.data.text import text
from hocket.errors import DataError, OptionError, raise_problems
from hocket.options.hints import argument_defaults, wrong_arguments
from hocket.options.own_function import load_own

DATA: Mapping[str, Callable[..., Data]] = MappingProxyType(
    {
        "digits": digits,
        "cifar10": cifar10,
        "cifar100": cifar100,
        "folder": folder,
        "text": text,
        "synthetic": synthetic,
    }
)
# Parameters of every data set that `load` passes itself.
_COMMON = frozenset({"data_dir", "batch_size", "seed"})


def options(name: str) -> dict[str, Any]:
    """Return the options of one data set with their defaults.

    A required option has the default `inspect.Parameter.empty`.

    Raises:
        OptionError: No data set has this name.

    >>> options("text")
    {'context': 64}
    """
    defaults = argument_defaults(_find_loader(name))
    return {key: default for key, default in defaults.items() if key not in _COMMON}


def load(
    name: str,
    /,
    *,
    data_dir: Path | None = None,
    batch_size: int,
    seed: int = 0,
    workers: int = 0,
    hold_out: float = 0.0,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    **chosen: Any,
) -> Data:
    """Load the data set of this name.

    Args:
        name: A key of `DATA`.
        data_dir: Folder with its files; only for data sets that read files.
        batch_size: Number of examples in a batch.
        seed: Seed of order and augmentation.
        workers: Number of threads that prepare batches ahead; 0 for none.
        hold_out: Share of the training examples that takes the place of the test; 0 for none.
        mixup: Alpha of mixup of training examples; 0 for none.
        cutmix: Alpha of CutMix of training images; 0 for none.
        chosen: Options of this data set; see its function.

    Raises:
        OptionError: The name or an option is unknown, missing or invalid.
        DataError: The data set is missing or damaged, or cannot be divided.
    """
    # Read the data, and divide them.
    check_data(name, data_dir, **chosen)
    if data_dir is not None:
        chosen["data_dir"] = Path(data_dir)
    try:
        data = _find_loader(name)(batch_size=batch_size, seed=seed, **chosen)
    except OSError as error:
        raise DataError(f"cannot read data set {name!r}: {error}; look at its path") from error
    if not isinstance(data.train, Batches) or not isinstance(data.test, Batches):
        raise OptionError(
            f"{name} returns data whose loaders are no hocket.data.Batches; serve the examples "
            "in these, or pass the loaders to Trainer.fit"
        )
    if hold_out:
        data = divide(data, hold_out)
    train, test = (each.with_options(workers=workers) for each in (data.train, data.test))
    # Mix training examples, if they can be mixed.
    if data.kind == "tokens" and (mixup or cutmix):
        raise OptionError(
            f"mixup is {mixup} and cutmix is {cutmix}, and the data set {name!r} has tokens, "
            "which are no numbers that could be mixed; leave both at 0"
        )
    if data.kind == "vectors" and cutmix:
        raise OptionError(
            f"cutmix is {cutmix}, and the data set {name!r} has vectors, not images of which "
            "parts could be replaced; use mixup"
        )
    if mixup or cutmix:
        mix = Mix(data.classes, mixup=mixup, cutmix=cutmix)
        train = train.with_options(examples=MixedExamples(train.examples, mix))
    return replace(data, train=train, test=test)


def check_data(name: str, data_dir: Path | None, /, **chosen: Any) -> None:
    """Check the options of a data set without reading its files.

    Args:
        name: A key of `DATA`.
        data_dir: Folder with its files; only for data sets that read files.
        chosen: Options of this data set; see its function.

    Raises:
        OptionError: The name or an option is unknown or missing.
    """
    loader = _find_loader(name)
    known = options(name)
    everywhere = [option for option in {**known, **chosen} if option in _SETTINGS]
    problems = [
        f"{option!r} is no option of a data set; give it as "
        f"--{option.replace('_', '-')} ({option}=...)"
        f"{', and rename the parameter' if option in known else ''}"
        for option in everywhere
    ]
    own = {option: value for option, value in chosen.items() if option not in everywhere}
    problems += wrong_arguments(loader, own, known)
    problems += [
        f"option {option!r} is missing; pass it"
        for option, default in known.items()
        if default is inspect.Parameter.empty and option not in [*chosen, *everywhere]
    ]
    reads_files = "data_dir" in inspect.signature(loader).parameters
    if reads_files and data_dir is None:
        problems.append("it reads files; pass their folder with --data-dir (data_dir=...)")
    if not reads_files and data_dir is not None:
        problems.append(f"it reads no files; drop --data-dir (data_dir={str(data_dir)!r})")
    raise_problems(OptionError, f"cannot load data set {name!r}", problems)


_SETTINGS = [
    p.name for p in inspect.signature(load).parameters.values() if p.kind is p.KEYWORD_ONLY
]
"""Arguments of `load` that are the same for every data set."""


def _find_loader(name: str) -> Callable[..., Data]:
    """Return the function that loads the data set of this name.

    Raises:
        OptionError: There is no data set of this name.
    """
    return DATA.get(name) or load_own("data set", name, DATA, Data)
