"""Search of the best options of each row of a study, beyond a grid, by optuna.

The trials are kept in a file in the folder of the study, which several processes can share:
each asks it for values to try, and tells it what became of them.
"""

import hashlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from hocket.errors import OptionError, RunFolderError, import_extra
from hocket.runs.config import parse_config
from hocket.runs.run_dir import lock_run_dir
from hocket.runs.sweeps.pool import POLL_S, Pool
from hocket.runs.sweeps.progress import SweepProgress
from hocket.runs.sweeps.results import RunOutcome, read_outcome
from hocket.runs.sweeps.rows import DEFAULTS, WITHOUT_EFFECT_ON_RESULTS, Row, Run
from hocket.runs.sweeps.run_folder import check_is_run
from hocket.runs.sweeps.search_record import SearchRecord, Trial, build_search_record
from hocket.runs.sweeps.space import RATE, Choice, Dimension, Interval, parse_space, with_values
from hocket.runs.sweeps.study import Study
from hocket.runs.sweeps.sweep import CLAIMS, RUNS, runs_at_a_time
from hocket.training.interrupt import Interrupt, stop_signals

STORAGE = "search.log"
"""File of the trials in the folder of a study."""
DRAWS = 100
"""Choices of values, one after another, that may be impossible."""


def search_study(
    study: Study | Path | str,
    trials: int,
    folder: Path | str | None = None,
    *,
    progress: bool = True,
) -> SearchRecord:
    """Try options of each row of a study, and write what was best.

    The table ``search`` of the study names the options and their ranges; without it the
    learning rate is tried between the smallest and the largest of ``learning_rates``. Each
    trial trains with the first seed of the sweep. Called again, or at the same time by other
    processes, it goes on until all rows have so many trials.

    Args:
        study: The study, or its file.
        trials: Number of trials of each row.
        folder: Folder of the runs and of the record; by default ``sweeps/NAME``.
        progress: Show trials as they end, and on a terminal how far the others are.

    Raises:
        OptionError: The file is no possible study, has nothing to search, or optuna is not
            installed.
        RunFolderError: The folder cannot be written.
    """
    study = study if isinstance(study, Study) else Study.read(study)
    if trials < 1:
        raise OptionError(f"search is {trials}; give the number of trials of each row")
    folder = Path("sweeps", study.name) if folder is None else Path(folder)
    try:
        (folder / RUNS).mkdir(parents=True, exist_ok=True)
        (folder / CLAIMS).mkdir(exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot make {str(folder)!r}: {error.strerror}") from error
    # Processes that search share the folder; a sweep has it for itself.
    with lock_run_dir(folder, "folder of a study", shared=True):
        stored = StoredTrials(folder / STORAGE)
        rows = [RowSearch(study, row, folder, stored) for row in study.rows]
        stopped_by = _Trials(study, rows, folder, trials).run(shown=progress)
        with in_turn(folder):
            found = [(each.row, each.trials()) for each in rows]
            record = build_search_record(study, folder, found, stopped_by)
            record.write()
    return record


def in_turn(folder: Path) -> AbstractContextManager[None]:
    """Context manager in which no other process searches in the folder of a study.

    Args:
        folder: The folder of the study.
    """
    return lock_run_dir(folder / CLAIMS, "folder of the trials", waits=True)


class StoredTrials:
    """The trials of all rows, in a file that processes share.

    Args:
        file: The file; it is made if it does not exist.

    Raises:
        OptionError: optuna is not installed.
    """

    def __init__(self, file: Path) -> None:
        self.optuna = import_extra("optuna", "search", "a search")
        self.optuna.logging.set_verbosity(self.optuna.logging.WARNING)
        storages = self.optuna.storages
        backend = storages.journal.JournalFileBackend(str(file))
        self._storage = storages.JournalStorage(backend)

    def of(self, row: Row, files: Mapping[str, str], space: object, objective: object) -> Any:
        """Return the study of optuna whose trials can be compared with each other.

        Args:
            row: The row of their options.
            files: Digests of the files that these name.
            space: Ranges of the options that they try.
            objective: Metric and seed that their values are of.
        """
        options = sorted(
            item for item in row.options.items() if item[0] not in WITHOUT_EFFECT_ON_RESULTS
        )
        decisive = (options, space, objective) + ((sorted(files.items()),) if files else ())
        digest = hashlib.sha256(repr(decisive).encode())
        # Other processes begin with other values.
        sampler = self.optuna.samplers.TPESampler(constant_liar=True)
        return self.optuna.create_study(
            storage=self._storage,
            sampler=sampler,
            study_name=digest.hexdigest(),
            load_if_exists=True,
        )


class RowSearch:
    """Trials of one row.

    Args:
        study: The study.
        row: The row.
        folder: Folder of the study.
        stored: Trials of all rows.

    Raises:
        OptionError: There is nothing to search.
    """

    def __init__(self, study: Study, row: Row, folder: Path, stored: StoredTrials) -> None:
        self.row = row
        self._study = study
        self._folder = folder
        self._space = _space(study, row)
        self._states = stored.optuna.trial.TrialState
        objective = study.metric, study.sweep_seeds[0], *_held_out(study).items()
        self._files = row.file_digests()
        self._stored = stored.of(row, self._files, self._space, objective)

    def require_same_files(self) -> None:
        """Refuse to go on with other code than that of the trials before.

        Raises:
            RunFolderError: The file of the network or of the plan has changed.
        """
        if self.row.file_digests() != self._files:
            raise RunFolderError(
                f"row {self.row.label!r}: the file of its network or of its plan has changed "
                "since the search began; call it again, for trials of the file as it is now"
            )

    @property
    def count(self) -> int:
        """Number of trials that have ended or are under way somewhere."""
        return len(self._begun())

    def trials(self) -> list[Trial]:
        """Return the trials that have begun, as values."""
        return [self._trial(each) for each in self._begun()]

    def running(self) -> Iterator[tuple[int, Run]]:
        """Yield the trials that have not ended, with their runs."""
        for each in self._begun():
            if each.state == self._states.RUNNING:
                yield each.number, self._run(self._values(each.params))

    def _begun(self) -> list[Any]:
        """Return the trials with all values, which do not contradict each other.

        A process was killed while it chose values of others.
        """
        trials = self._stored.get_trials(deepcopy=False)
        return [
            each
            for each in trials
            if each.params.keys() == self._space.keys() and self._contradiction(each) is None
        ]

    def _contradiction(self, stored: Any) -> OptionError | None:
        """Return the error of values that exclude each other; None if they do not."""
        try:
            self._run(self._values(stored.params))
        except OptionError as error:
            return error
        return None

    def ask(self) -> tuple[int, Run]:
        """Return the number of a new trial and its run; values that exclude each other are not.

        Raises:
            OptionError: No values that were chosen can stand together.
        """
        for _ in range(DRAWS):
            trial = self._stored.ask()
            for name, dimension in self._space.items():
                _suggest(trial, name, dimension)
            error = self._contradiction(trial)
            if error is None:
                return trial.number, self._run(self._values(trial.params))
            self._stored.tell(trial.number, math.inf)  # a failed one would be drawn again
        raise OptionError(
            f"search, row {self.row.label!r}: {DRAWS} choices of values one after another are "
            f"impossible; take values out that exclude each other; the last one: {error}"
        )

    def tell(self, number: int, outcome: RunOutcome) -> None:
        """Keep the outcome of a trial that has ended."""
        failed = self._states.FAIL if outcome.last is None else None
        self._stored.tell(number, outcome.last, state=failed, skip_if_finished=True)

    def _values(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a trial, as its run gets them."""
        return {name: self._space[name].rounded(value) for name, value in stored.items()}

    def _run(self, values: dict[str, Any]) -> Run:
        seed = self._study.sweep_seeds[0]
        given = {**DEFAULTS, **self.row.options, **_held_out(self._study), "seed": seed}
        options = with_values(given, values)
        label = ", ".join(
            [self.row.label, *(f"{name} {_short(value)}" for name, value in values.items())]
        )
        return Run(label, parse_config(options, f"row {label!r}"), None, seed)

    def _trial(self, stored: Any) -> Trial:
        values = self._values(stored.params)
        run = self._run(values)
        outcome = read_outcome(self._folder / RUNS, run, self._study.metric)
        value = stored.value if stored.state == self._states.COMPLETE else None
        return Trial(stored.number, values, stored.state.name.lower(), value, outcome)


class _Trials:
    """The trials of all rows that this process works on.

    Args:
        study: The study.
        rows: Trials of each row.
        folder: Folder of the study.
        wanted: Number of trials of each row.
    """

    def __init__(
        self, study: Study, rows: Sequence[RowSearch], folder: Path, wanted: int
    ) -> None:
        self._study = study
        self._rows = rows
        self._folder = folder
        self._wanted = wanted
        self._claimed: dict[str, tuple[RowSearch, int, ExitStack]] = {}

    def run(self, *, shown: bool) -> int:
        """Try until all rows have their trials; return the signal that stopped it, or 0."""
        at_once = runs_at_a_time(self._study)
        total = self._wanted * len(self._rows)
        with (
            SweepProgress(total, self._study.metric, shown=shown) as bar,
            Interrupt(stop_signals()) as interrupt,
            Pool(self._folder / RUNS) as pool,
        ):
            bar.begin(sum(self._ended(row) for row in self._rows))
            waiting = True
            while (waiting or pool.running) and not interrupt.asked:
                while len(pool.running) < at_once and (waiting := self._start(pool)):
                    pass
                if self._collect(pool, bar):
                    waiting = True  # a trial may have waited for another one of the same values
                else:
                    time.sleep(POLL_S)
                bar.update(pool.running)
            pool.stop()
            self._collect(pool, bar)
        return interrupt.asked

    def _ended(self, row: RowSearch) -> int:
        return sum(trial.state != "running" for trial in row.trials())

    def _start(self, pool: Pool) -> bool:
        """Start a trial that was abandoned, or else a new one; return False if none is left."""
        # A trial whose values another process chooses just now is not abandoned.
        with in_turn(self._folder):
            for row in self._rows:
                row.require_same_files()
                for number, run in row.running():
                    if self._claim(row, number, run):
                        pool.start(run)
                        return True
            for row in self._rows:
                while row.count < self._wanted:
                    number, run = row.ask()
                    if self._claim(row, number, run):
                        pool.start(run)
                        return True
        return False

    def _claim(self, row: RowSearch, number: int, run: Run) -> bool:
        """Return True if no process works on the run of a trial, and let this one do so."""
        place = self._folder / CLAIMS / run.name
        place.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(lock_run_dir(place, "trial"))
            except RunFolderError:
                return False
            check_is_run(self._folder / RUNS / run.name, run)
            outcome = read_outcome(self._folder / RUNS, run, self._study.metric)
            if outcome.last is not None:  # the same values were tried before
                row.tell(number, outcome)
                return False
            self._claimed[run.name] = (row, number, stack.pop_all())
            return True

    def _collect(self, pool: Pool, bar: SweepProgress) -> bool:
        """Keep the outcomes of the trials that have ended; return True if there are any."""
        some = False
        for run, result in pool.ended():
            outcome = read_outcome(self._folder / RUNS, run, self._study.metric)
            row, number, claim = self._claimed.pop(run.name)
            with claim:
                if result is not None:
                    row.tell(number, outcome)
            bar.end(outcome if result is not None else None, run)
            some = True
        return some


def _space(study: Study, row: Row) -> dict[str, Dimension]:
    """Return the dimensions of the search of a row.

    Raises:
        OptionError: The study has no table ``search``, and the row fewer than two rates.
    """
    if study.search:
        return parse_space(study.search)
    if len(row.learning_rates) < 2:
        raise OptionError(
            f"row {row.label!r} has nothing to search; give the study a table [search] with "
            "the ranges of options, or at least two learning_rates"
        )
    rates = [float(rate) for rate in row.learning_rates]
    return {RATE: Interval(min(rates), max(rates), log=True)}


def _held_out(study: Study) -> dict[str, float]:
    """Return the option of the trials of a study that divides their data, if it wants that."""
    share = study.hold_out_for_sweep
    return {"hold_out": share} if share else {}


def _suggest(trial: Any, name: str, dimension: Dimension) -> None:
    """Let optuna choose a value of a dimension for a trial."""
    if isinstance(dimension, Choice):
        trial.suggest_categorical(name, dimension.values)
    elif dimension.is_whole:
        trial.suggest_int(name, dimension.low, dimension.high, log=dimension.log)
    else:
        trial.suggest_float(name, dimension.low, dimension.high, log=dimension.log)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
