"""Results of parts of a measurement, kept in its folder so that it can go on after a stop."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.record import read_json, write_record_json
from hocket.errors import OptionError


@dataclass(frozen=True)
class KeptResults:
    """Files of results in a folder, each with the choices that it depends on."""

    folder: Path

    def find(self, name: str, asked: Mapping[str, Any], measure: Callable[[], Any]) -> Any:
        """Return a result of the folder; measure it if there is none for these choices.

        The choices are everything that it depends on; they and the result are plain JSON.
        """
        file = self.folder / name
        if file.exists() and (kept := read_json(file))["asked"] == asked:
            return kept["found"]
        found = measure()
        write_record_json(file, {"asked": dict(asked), "found": found})
        return found

    def require_same(self, settings: Mapping[str, Any]) -> None:
        """Refuse a folder whose results had other settings; an empty one gets these.

        Raises:
            OptionError: They differ from the settings of the folder.
        """
        kept = self.find("settings.json", {}, lambda: dict(settings))
        if differing := [name for name in settings if kept.get(name) != settings[name]]:
            shown = ", ".join(
                f"{name} {kept.get(name)} != {settings[name]}" for name in differing
            )
            raise OptionError(
                f"{self.folder} was measured with other settings ({shown}); choose another "
                "folder, or delete this one"
            )
