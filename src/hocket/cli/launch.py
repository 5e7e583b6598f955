"""``hocket launch``: a script in several processes."""

from pathlib import Path

from hocket.errors import OptionError


def launch_command(script: Path, /, *words: str, processes: int, threads: int = 0) -> int:
    """Run a Python script in several processes of this machine.

    torch.distributed is initialised in each of them.

    Args:
        script: The script; options of `hocket launch` come before it.
        words: Arguments of the script, options included.
        processes: Number of processes.
        threads: Threads of PyTorch in each process; 0 shares the cores out.

    Raises:
        OptionError: There is no such script.
    """
    if not script.is_file():
        raise OptionError(f"there is no script {str(script)!r}; name a Python file")
    from hocket.distributed.launching.launch import CHECKPOINT_GRACE_S, launch, run_script

    return launch(
        run_script,
        str(script),
        words,
        processes=processes,
        threads=threads,
        grace_s=CHECKPOINT_GRACE_S,
    )
