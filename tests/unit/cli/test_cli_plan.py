"""`hocket plan` prints forecasts, and writes a plan that `hocket train --plan` reads."""

import re
import shlex

import pytest

from hocket.partition import Plan
from unit.benchmarks.small_workloads import even_profile
from unit.cli.test_cli import read_json

pytestmark = pytest.mark.usefixtures("here")
SMALL = ["plan", "--network", "mlp:hidden=[8,8]", "--data", "digits", "--batch-size", "8"]


def test_stages_that_share_the_machine_are_rehearsed_together(call):
    code, printed, _ = call(*SMALL, "--stages", 2, "--methods", "dni", "--same-machine")
    assert code == 0
    assert "Recommended: dni on 2 stages" in printed
    assert "Assumed: " not in printed


def test_a_plan_is_printed_written_drawn_and_trained(call, here):
    methods = ["fdg:shrink=0.5", "dgl-async:buffer=9", "ddg:accumulate=2+predict+t1"]
    arguments = [*SMALL, "--stages", "2,3", "--methods", ",".join(methods)]
    code, printed, _ = call(*arguments, "--plan-out", "plan.json", "--picture", "plan.svg")
    assert code == 0
    assert "Forecasts" in printed
    assert "fdg:shrink=0.5" in printed
    assert "Recommended: " in printed
    assert "by stage" in printed
    assert "times as fast as back-propagation on one device" in printed
    assert re.search(r"updates stale(?s:.*)Assumed: [23] devices", printed)
    assert (here / "plan.svg").read_text().startswith("<?xml")
    content = read_json("plan.json")
    found = [(one["method"], len(one["cuts"]) + 1) for one in content["forecasts"]]
    # Stages this small may wait for each other, and what hides that is forecast as well.
    assert set(found) >= {(method, count) for count in (2, 3) for method in methods}
    (command,) = re.findall("train with: hocket (.*)", printed)
    code, _, told = call(*shlex.split(command), "--epochs", 1, "--run-dir", "best")
    assert (code, "note:" in told) == (0, False)
    stages = len(content["cuts"]) + 1
    train = ["train", "--plan", "plan.json", "--stages", stages, "--epochs", 1, "--run-dir"]
    assert call(*train, "run", "--network", "mlp:hidden=[8,8]")[0] == 0


def test_methods_and_stages_that_are_given_twice_are_forecast_once(call, monkeypatch):
    """A speed-up that is impossible is told."""
    monkeypatch.setattr("hocket_lab.commands.plan.CREDIBLE_SPEED_UP", 0.0)
    words = ("--stages", "2,02,2", "--methods", "bp,dgl,bp,dgl:depth=3")
    code, printed, _ = call(*SMALL, *words, "--plan-out", "plan.json")
    assert code == 0
    assert [one["method"] for one in read_json("plan.json")["forecasts"]] == ["bp", "dgl"]
    assert "plan again when nothing else runs on it" in printed


def test_what_needs_more_memory_than_there_is_is_not_recommended(call, monkeypatch):
    """The rehearsal decides, whatever the cut expected."""
    monkeypatch.setattr("hocket_lab.planner.predict.fastest_cut", lambda *_, **__: [0])
    arguments = [*SMALL, "--stages", "2", "--methods", "fdg,bp", "--memory"]
    code, printed, _ = call(*arguments, "11kB,1GiB")
    assert code == 0
    assert "memory of a stage's device, and so not recommended: fdg on 2 stages." in printed
    assert "Recommended: bp on 2 stages" in printed
    code, _, told = call(*arguments, "1kB")
    assert code == 2
    assert "in fdg on 2 stages, which comes closest, stage 0 needs" in told


def test_a_slow_device_gets_less_of_the_network_and_the_plan_trains(call, monkeypatch):
    monkeypatch.setattr("hocket.partition.cutting.profile", even_profile)
    arguments = ["plan", "--network", "mlp:hidden=[8,8,8,8,8]", "--data", "digits"]
    arguments += ["--methods", "fdg", "--plan-out", "plan.json", "--memory", "1GiB,500MB"]
    code, printed, _ = call(*arguments, "--speeds", "1,0.5", "--link", "1Gbit,1us")
    assert code == 0
    assert "Assumed: 2 devices with the speeds 1, 0.5, one for each stage" in printed
    content = read_json("plan.json")
    assert content["cuts"] == ["hidden3.1"]
    made_for = content["made_for"]
    assert (made_for["network"], made_for["batch_size"]) == ("mlp:hidden=[8,8,8,8,8]", 64)
    assert [device["speed"] for device in made_for["devices"]] == [1.0, 0.5]
    assert made_for["devices"][0]["link"] == {"bytes_per_s": 125e6, "latency_s": 1e-6}
    (command,) = re.findall("train with: hocket (.*)", printed)
    assert "--processes 2" in command
    assert call(*shlex.split(command), "--epochs", 1, "--run-dir", "run")[0] == 0
    assert read_json("run/plan.json")["cuts"] == ["hidden3.1"]


def test_a_training_on_a_plan_notes_what_it_does_not_do_as_recommended(call, here):
    file = here / "plan.json"
    Plan(("hidden1",)).write(file, method="ddg", extra_delay=[2])
    options = ["train", "--network", "mlp:hidden=[8,8]", "--data", "digits", "--updates", "1"]
    options += ["--stages", "2", "--plan", str(file)]

    def train(*more):
        code, _, told = call(*options, "--run-dir", here / "_".join(map(str, more)), *more)
        assert code == 0
        return told

    note = f"note: plan {file} recommends --method ddg --extra-delay 2; this run uses --method "
    assert f"{note}fdg\n" in train("--method", "fdg")
    assert f"{note}ddg --extra-delay 1\n" in train("--method", "ddg", "--extra-delay", "1")
    assert "note" not in train("--method", "ddg", "--extra-delay", "2")
    Plan(("hidden1",)).write(file, method="fdg", extra_delay=[0], codec="int8")
    assert "recommends --method fdg --codec int8; this" in train("--method", "fdg", "--seed", 1)
    Plan(("hidden1",)).write(file)  # cuts alone
    assert "note" not in train("--method", "bp")


def test_a_slow_link_is_hidden_by_an_extra_delay(call):
    arguments = [*SMALL, "--stages", "2", "--methods", "fdg,bp", "--link", "1Gbit,300ms"]
    code, printed, _ = call(*arguments, "--codec", "int8", "--plan-out", "plan.json")
    assert code == 0
    assert re.search("Recommended: fdg with extra delay [0-9]+ with int8 on 2 stages", printed)
    assert re.search("train with: .* --extra-delay [0-9]+ --codec int8\n", printed)
    content = read_json("plan.json")
    assert {content["codec"], *(one["codec"] for one in content["forecasts"])} == {"int8"}
    assert [bool(one["extra_delay"]) for one in content["forecasts"]] == [False, False, True]
    waiting, _, hidden = content["forecasts"]
    assert waiting["hiding_delay"] == hidden["extra_delay"] == content["extra_delay"]
    assert waiting["tick_s"] > 2 * hidden["tick_s"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stages", "1,x"], "a number of stages is '1'; give 2 or more"),
        (["--stages", "1,x"], "is 'x'; give 2"),
        (["--methods", ""], "there are no methods"),
        (["--threads", "0"], "threads is 0; use a number in [1, 1025)"),
        (["--methods", "fdg,dglasync"], "unknown method 'dglasync' (did"),
        (["--plan-out", "plan.txt"], "file is 'plan.txt'"),
        (["--picture", "plan.gif"], "cannot draw to 'plan.gif'; use a name in .svg"),
        (["--codec", "int4"], "unknown codec 'int4' (did"),
        (["--link", "soon"], "the link is 'soon'"),
        (["--memory", "100B", "--stages", "2"], "stage 0 needs 0 MiB and has 9.53674e-05 MiB"),
        (["--memory", "8GB,lots"], "memory is 'lots'; write bytes with a unit"),
        (["--speeds", "1,fast"], "speeds is '1,fast'; write numbers above 0"),
        (["--speeds", "1,0"], "speed is 0.0"),
        (["--speeds", "1,1,0.5", "--stages", "2"], "speeds has 3 values for 2 stages; give 2"),
        (["--speeds", "1,0.5", "--link", "1Gbit,1Gbit"], "speeds has 2 values for 3 stages"),
        (["--speeds", "1,0.5", "--same-machine"], "speeds is '1,0.5', and with same_machine"),
    ],
)
def test_invalid_options_are_refused_before_a_rehearsal(refused, monkeypatch, words, message):
    monkeypatch.setattr("hocket_lab.planner.predict.rehearse_candidates", pytest.fail)
    assert message in refused(*SMALL, *words)


def test_a_method_that_cannot_have_that_number_of_stages_is_refused_before_measurements(
    refused, monkeypatch
):
    monkeypatch.setattr("hocket_lab.planner.predict.measure_layers", pytest.fail)
    words = ("--stages", "2,4", "--methods", "fdg,pipedream-2bw:accumulate=2")
    text = "method 'pipedream-2bw' on 4 stages: with hold='double' and accumulate=2 stage 0"
    assert text in refused(*SMALL, *words)
