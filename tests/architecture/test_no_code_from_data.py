"""Nothing that is read from a file, a connection or a variable is run."""

import ast
from pathlib import Path

import hocket

SOURCE = Path(hocket.__file__).parents[1]
RUNS = {"eval", "exec", "system", "popen", "run_path", "run_module", "exec_module"}
RUNS |= {"import_module", "Unpickler", "all_gather_object", "broadcast_object_list"}
# What runs code, and whose.
ALLOWED = {
    ("launching.launch", "run_path"): "the script that is named on the command line",
    ("options.own_function", "exec_module"): "the file that an option names",
    ("options.own_function", "import_module"): "the module that an option names",
    ("hocket", "import_module"): "its own modules, from a table",
    ("hocket_lab", "import_module"): "its own modules, from a table",
    ("hocket.errors", "import_module"): "the packages of extras, named in the source",
    ("remedies.registry", "import_module"): "the modules of two packages, named in the source",
    ("launching.fork_server", "import_module"): "modules of Hocket that its launcher uses",
    ("launching.fork_server", "recv"): "what its launcher has sent through a pipe",
    ("launching.worker_main", "pickle.loads"): "what its launcher has sent through a pipe",
}


def name_of(call: ast.Call) -> str:
    """What is called; of pickle and torch.load with where it is from."""
    words = ast.unparse(call.func)
    last = words.rpartition(".")[2]
    return words if last in ("load", "loads") else last


def found():
    for file in sorted(SOURCE.rglob("*.py")):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        module = ".".join(part for part in parts[-3:] if part != "__init__")
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                yield ".".join(module.split(".")[-2:]), name_of(node), node


def runs_code(name: str, call: ast.Call) -> bool:
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if name == "torch.load":
        return given.get("weights_only") != "True"
    if name in ("np.load", "numpy.load"):
        return "allow_pickle" in given
    if name == "recv":  # of a connection of multiprocessing, which has no argument
        return not call.args
    return name in RUNS | {"pickle.load", "pickle.loads"} or given.get("shell") == "True"


def test_only_what_a_user_names_is_run():
    running = {(module, name) for module, name, call in found() if runs_code(name, call)}
    assert running == ALLOWED.keys()


def test_whatever_runs_code_is_seen():
    text = """
pickle.loads(x); pickle.load(f); torch.load(f); torch.load(f, weights_only=False); eval(x)
subprocess.run(x, shell=True); os.system(x); np.load(f, allow_pickle=True); runpy.run_path(x)
connection.recv(); socket.recv(8)
"""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    assert [runs_code(name_of(call), call) for call in calls] == [True] * 10 + [False]
