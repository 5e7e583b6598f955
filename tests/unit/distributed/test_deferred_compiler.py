"""The compiler is imported when something uses it, and is the real one then."""

from end_to_end.namespaces import run_python

TRAINS = """
stand_in = sys.modules["torch._dynamo"]
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.5)

def step():
    weight.grad = torch.ones(2)
    optimizer.step()
    return weight.tolist()

assert step() == [0.5, 0.5]
optimizer.load_state_dict(optimizer.state_dict())
torch.distributed.init_process_group(
    "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
)
assert "sympy" not in sys.modules
"""
USES = {
    "compiles": "assert torch.compile(torch.neg, backend='eager')(weight).sum() == -1",
    "submodule": "import torch._dynamo.config as c; assert c is torch._dynamo.config",
    "other submodule": "import torch._dynamo.backends.cudagraphs as c; assert c.__spec__",
    "rules": "assert torch._dynamo.trace_rules.lookup(torch.neg)",
    "disable": "assert torch.compiler.disable(lambda: 3)() == 3",
}
AFTER = """
assert sys.modules["torch._dynamo"] is not stand_in
assert torch._dynamo is sys.modules["torch._dynamo"]
assert torch._dynamo.__spec__.name == "torch._dynamo"
assert torch._dynamo.eval_frame.__spec__.name == "torch._dynamo.eval_frame"
assert step() == [0.0, 0.0]
optimizer.load_state_dict(optimizer.state_dict())
defer_compiler()
assert sys.modules["torch._dynamo"] is not stand_in
"""
# Imports PyTorch once, and forks a process for each program.
PROCESSES = """
import os
import sys
import traceback
import torch
from hocket.distributed.launching.deferred_compiler import defer_compiler

defer_compiler()
for name, program in eval(sys.argv[1]).items():
    child = os.fork()
    if not child:
        try:
            exec(program, globals())
        except BaseException:
            print(name, traceback.format_exc(), flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(name, "was killed")
"""


def test_optimizers_and_groups_work_without_the_compiler_and_any_other_use_imports_it(tmp_path):
    programs = {name: TRAINS + use + AFTER for name, use in USES.items()} | {"before": TRAINS}
    said = run_python("-W", "error", "-c", PROCESSES, repr(programs), folder=tmp_path)
    assert said == ""
