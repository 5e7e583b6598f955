"""Data sets by name, with options checked before anything is read."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hocket.data.cifar import cifar10, cifar100
from hocket.data.dataset import Data
from hocket.data.digits import digits
from hocket.data.hugging_face import hf
from hocket.data.image_folder import folder
from hocket.data.synthetic import synthetic
from hocket.data.text import text
from hocket.errors import OptionError, listed, unknown
from hocket.options import argument_hints, wrong_options

DATA: Mapping[str, Callable[..., Data]] = MappingProxyType(
    {
        "digits": digits,
        "cifar10": cifar10,
        "cifar100": cifar100,
        "folder": folder,
        "hf": hf,
        "text": text,
        "synthetic": synthetic,
    }
)
# What every data set takes from `load` itself.
_COMMON = frozenset({"data_dir", "batch_size", "seed"})


def options(name: str) -> dict[str, Any]:
    """Options of one data set with their defaults; `inspect.Parameter.empty` where required.

    Raises:
        OptionError: No data set has this name.

    >>> options("text")
    {'context': 64}
    """
    parameters = inspect.signature(_loader(name)).parameters
    return {key: p.default for key, p in parameters.items() if key not in _COMMON}


def load(
    name: str,
    *,
    data_dir: Path | None = None,
    batch_size: int,
    seed: int = 0,
    **chosen: Any,
) -> Data:
    """The data set of this name.

    Args:
        name: A key of `DATA`.
        data_dir: Where its files lie; only for data sets that read files.
        batch_size: Examples in a batch.
        seed: Decides order and augmentation.
        chosen: Options of this data set, see its function.

    Raises:
        OptionError: The name, an option or its value is unknown, missing or not for this set.
        DataError: The data set is missing or damaged.
    """
    loader = _loader(name)
    known = options(name)
    problems = wrong_options(chosen, known, argument_hints(loader))
    problems += [
        f"option {option!r} is missing; pass it"
        for option, default in known.items()
        if default is inspect.Parameter.empty and option not in chosen
    ]
    takes_folder = "data_dir" in inspect.signature(loader).parameters
    if takes_folder and data_dir is None:
        problems.append("it reads files; pass their folder with --data-dir (data_dir=...)")
    if not takes_folder and data_dir is not None:
        problems.append(f"it reads no files; drop --data-dir (data_dir={str(data_dir)!r})")
    if problems:
        raise OptionError(listed(f"cannot load data set {name!r}", problems))
    if data_dir is not None:
        chosen["data_dir"] = Path(data_dir)
    return loader(batch_size=batch_size, seed=seed, **chosen)


def _loader(name: str) -> Callable[..., Data]:
    """The function behind a name."""
    if name not in DATA:
        raise OptionError(unknown("data set", name, DATA))
    return DATA[name]
