"""The command ``lightloop``: what it prints, and that errors are one line and an exit code."""

import json
import os
import re
import subprocess
import sys
import warnings

import pytest
import torch
import yaml

from lightloop.cli import front
from lightloop.cli.hooks import SPECS
from lightloop.cli.options import listed, read_options
from lightloop.cli.parser import parsable

NET = '''
import torch
from lightloop.testing import TinyClassifier, classification_batches

class Net(TinyClassifier):
    """A net.

    Args:
        lr: How far a step goes.
        hidden: How wide it is.
    """

    def __init__(self, lr: float = 0.1, hidden: int = 8):
        super().__init__(lr)
        layers = [torch.nn.Linear(4, hidden), torch.nn.Dropout(0.5), torch.nn.ReLU(), torch.nn.Linear(hidden, 3)]
        self.net = torch.nn.Sequential(*layers)

    def test_step(self, batch, batch_idx):
        self.log("test_loss", torch.nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

class Fails(Net):
    def training_step(self, batch, batch_idx):
        raise RuntimeError("boom")

def data(batches: int = 4):
    names = ("train", "val", "test", "predict")
    return {name: classification_batches(batches, seed=seed) for seed, name in enumerate(names)}

class Optional(Net):
    def __init__(self, dropout: float | None = 0.9, depth: int | None = 2, names: dict | None = None):
        super().__init__()
        self.net[1] = torch.nn.Identity() if dropout is None else torch.nn.Dropout(dropout)
        self.register_buffer("kept", torch.tensor([dropout is None, depth is None, (names or {}).get("a", 1) is None]))

def only_train():
    return {"train": classification_batches(2)}

number = 3
'''


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the command in a folder that has net.py, and gives its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("LIGHTLOOP_RUNS", "runs")
    (tmp_path / "net.py").write_text(NET)
    sys.modules.pop("net", None)

    def call(*arguments):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = front.main(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    yield call
    sys.modules.pop("net", None)


# --------------------------------------------------------------------------------------------------------- the front


def test_it_lists_its_commands(run):
    code, out, err = run("--help")
    names = ["check", "doctor", "explain", "fit", "hooks", "new-plugin", "plugins", "predict", "test", "validate"]
    said = dict(re.findall(r"^  ([\w-]+)  +(\S.*)$", out, flags=re.MULTILINE))
    assert [name for name in said if name in names] == names
    assert "command '" not in out
    assert (code, err) == (0, "")
    assert run()[0] == 2
    assert run("--version")[1] == "lightloop 0.1.0\n"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["plugin"], "lightloop: there is no command 'plugin'. Did you mean 'plugins' or 'new-plugin' or 'explain'? See lightloop --help"),
        (["plugins", "emma"], "lightloop plugins: there is no plugin 'emma'. Did you mean 'ema'?"),
        (["plugins", "--all"], "lightloop plugins: unrecognized arguments: --all; see lightloop plugins --help"),
        (["hooks", "before_stp"], "lightloop hooks: there is no hook 'before_stp'. Did you mean 'before_step' or 'before_fit' or 'before_epoch'?"),
        (["explain", "--max_epoch", "3"], "lightloop explain: Trainer has no option 'max_epoch'. Did you mean 'max_epochs' or 'min_epochs' or 'max_steps'?"),
        (["explain", "3"], "lightloop explain: '3' is no option: write --NAME VALUE"),
        (["explain", "--max_epochs"], "lightloop explain: --max_epochs needs a value: write --max_epochs VALUE"),
        (["explain", "--plugins", "clip"], "lightloop explain: gradient_clip_val (clip.limit) must be a number above 0; it is None"),
        (["explain", "--config", "no.yaml"], "lightloop explain: config no.yaml cannot be read: No such file or directory"),
        (["check", "emma"], "lightloop check: there is no plugin 'emma'. Did you mean 'ema'?"),
        (["new-plugin", "My-Plugin"], "lightloop new-plugin: the name must be small letters, digits and _, and begin with a letter; it is 'My-Plugin'"),
        (["fit"], "lightloop fit: which module? Give --module package.module:Name"),
        (["fit", "--module", "net"], "lightloop fit: module must be 'package.module:Name' or 'file.py:Name'; it is 'net'"),
        (["fit", "--module", "nett:Net"], "lightloop fit: module 'nett:Net' cannot be imported: ModuleNotFoundError: No module named 'nett'"),
        (["fit", "--module", "net.py:Nett"], "lightloop fit: module 'net.py:Nett': net.py has no 'Nett'. Did you mean 'Net'?"),
        (["fit", "--module", "net.py:number"], "lightloop fit: module 'net.py:number' is no torch.nn.Module; it is int"),
        (["fit", "--module", "net:Net"], "lightloop fit: nothing to train on: pass fit(module, train), or define Net.train_dataloader"),
        (["fit", "--max_epoch", "3"], "lightloop fit: there is no option --max_epoch. Did you mean 'max_epochs' or 'min_epochs' or 'max_steps'?"),
        (["fit", "--max_epochs", "x"], "lightloop fit: max_epochs must be int | None; it is 'x'"),
        (["fit", "--module", "net:Net", "--data", "net:data", "--gradient_clip_val", "-1"], "lightloop fit: gradient_clip_val (clip.limit) must be a number above 0; it is -1.0"),
        (["fit", "--module", "net:Net", "--data", "net:data", "--plugins", "emma"], "lightloop fit: there is no plugin 'emma'. Did you mean 'ema'?"),
        (["test", "--module", "net:Net", "--data", "net:only_train"], "lightloop test: the data function gives train, and nothing under 'test' to test"),
        (["test", "--module", "net:Net", "--data", "net:data", "--weights", "no.pt"], "lightloop test: weights no.pt cannot be read: [Errno 2] No such file or directory: 'no.pt'"),
    ],
)  # fmt: skip
def test_an_error_is_one_line_and_code_2(run, arguments, error):
    code, out, err = run(*arguments)
    assert err.splitlines() == [error]
    assert (code, out) == (2, "")


def test_a_command_of_others_that_is_broken_is_told(run, monkeypatch):
    from importlib.metadata import EntryPoint

    broken = EntryPoint("mine", "nonexistent_thing:main", front.GROUP)
    monkeypatch.setattr(front, "read_entry_points", lambda group: ([broken], []))
    assert (
        "mine  command 'mine' is broken: ModuleNotFoundError: No module named 'nonexistent_thing'" in run("--help")[1]
    )
    assert run("mine") == (
        2,
        "",
        "lightloop mine: command 'mine' is broken: ModuleNotFoundError: No module named 'nonexistent_thing'\n",
    )


@pytest.mark.processes
def test_it_is_a_program_too(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "lightloop", "hooks", "step"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(
        "step(self, loop: Loop) -> bool | None    # the first answer that is not None counts\n"
    )


# ------------------------------------------------------------------------------------------- what is there, and the order


def test_plugins_are_listed_with_what_is_known_of_them(run):
    code, out, _ = run("plugins")
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert rows["NAME"].split() == ["NAME", "DISTRIBUTION", "LIVE", "HOOKS"]
    assert re.fullmatch(r"clip +lightloop 0\.1\.0 +on request +before_fit, before_step", rows["clip"])
    assert re.fullmatch(r"cpu +lightloop 0\.1\.0 +by default .*", rows["cpu"])
    code, out, _ = run("plugins", "clip", "accumulate")
    assert "\n  after      grad_norm, nonfinite\n" in out
    assert "\n  gradient_clip_algorithm: Literal['norm', 'value', 'adaptive'] = 'norm'\n      What to clip: " in out
    assert "\n\naccumulate  lightloop 0.1.0\n" in out
    assert code == 0


def test_one_that_is_left_out_is_listed_with_the_reason(run, monkeypatch):
    monkeypatch.setenv("LIGHTLOOP_WITHOUT", "ema")
    assert re.search(
        r"^ema +lightloop 0\.1\.0 +no: it is left out by LIGHTLOOP_WITHOUT$", run("plugins")[1], re.MULTILINE
    )
    assert run("check", "ema") == (1, "", "plugin 'ema' of lightloop 0.1.0 is left out by LIGHTLOOP_WITHOUT\n")
    assert "'ema' of lightloop 0.1.0 is left out by LIGHTLOOP_WITHOUT" in run("doctor")[1]


def test_the_contract_is_every_hook_in_order(run):
    code, out, _ = run("hooks")
    assert re.findall(r"^(\w+)\(self", out, flags=re.MULTILINE) == list(SPECS)
    assert code == 0
    assert "loop.hook" not in run("hooks", "grad_norm")[1]
    assert run("hooks", "grad_norm")[1].splitlines()[0] == (
        "grad_norm(self, loop: Loop, norm_type: float) -> Tensor | None    # the first answer that is not None counts"
    )


def test_a_run_is_explained_as_text_and_as_graphs(run, tmp_path):
    asked = ["--plugins", "-*", "--gradient_clip_val", "1.0", "--track_grad_norm", "2"]
    _, out, _ = run("explain", *asked)
    assert "before_step\n  1. grad_norm\n  2. clip  [grad_norm says before='clip']\n" in out
    _, out, _ = run("explain", "--mermaid", *asked)
    assert out.splitlines()[0] == "flowchart TB"
    assert (
        '  subgraph before_step\n    direction LR\n    before_step_0["grad_norm"]\n    before_step_0 --> before_step_1["clip"]\n'
        in out
    )
    _, out, _ = run("explain", "--svg", *asked)
    from xml.etree import ElementTree

    drawn = [node.text for node in ElementTree.fromstring(out).iter("{http://www.w3.org/2000/svg}text")]
    assert drawn[drawn.index("before_step") :][:3] == ["before_step", "grad_norm", "clip"]
    (tmp_path / "c.json").write_text(json.dumps({"plugins": ["-*"], "gradient_clip_val": 1.0, "track_grad_norm": 2}))
    assert run("explain", "--config", "c.json")[1] == run("explain", *asked)[1]


def test_doctor_tells_what_is_there_and_what_is_broken(run, tmp_path):
    code, out, _ = run("doctor")
    assert code == 0
    assert out.startswith("lightloop 0.1.0, Python 3.")
    assert re.search(r"^  torch +\d", out, flags=re.MULTILINE)
    assert "\nbroken: nothing\n" in out
    (tmp_path / "lightloop_local.py").write_text("import nonexistent_thing")
    code, out, _ = run("doctor")
    os.environ.pop("LIGHTLOOP_LOCAL")  # the command set it for its own processes
    assert code == 1
    assert out.endswith(
        "\nbroken: \n  plugin 'lightloop_local' of lightloop_local.py: cannot be imported: "
        "ModuleNotFoundError: No module named 'nonexistent_thing'\n"
    )


def test_doctor_finds_hooks_that_do_not_exist(run, tmp_path, monkeypatch):
    source = "from lightloop import Plugin, hookimpl\nclass Mine(Plugin):\n    name = 'mine'\n"
    source += "    @hookimpl\n    def before_stp(self, loop): pass\n"
    (tmp_path / "mine.py").write_text(source)
    monkeypatch.setenv("LIGHTLOOP_LOCAL", str(tmp_path / "mine.py"))
    code, out, _ = run("doctor")
    sys.modules.pop("lightloop_local")
    assert code == 1
    assert (
        "plugin 'mine' of mine.py: plugin 'mine' (lightloop_local): hook 'before_stp' does not exist. "
        "Did you mean 'before_step'" in out
    )


def test_doctor_names_a_plugin_whose_place_contradicts_the_others(run, tmp_path, monkeypatch):
    source = (
        "from lightloop import Plugin\nclass Odd(Plugin):\n    name, after, before = 'odd', ('clip',), ('precision',)\n"
    )
    (tmp_path / "mine.py").write_text(source)
    monkeypatch.setenv("LIGHTLOOP_LOCAL", str(tmp_path / "mine.py"))
    code, out, _ = run("doctor")
    sys.modules.pop("lightloop_local")
    assert code == 1
    assert (
        "\n  plugin 'odd' is not live and its before and after are ignored, since they contradict the others': " in out
    )


# ------------------------------------------------------------------------------------------------- options and the runs


def test_options_are_read_as_they_are_written():
    plugins, options = read_options(
        [
            "--plugins",
            "[ema, -progress]",
            "--a=1",
            "--b-c",
            "1e-3",
            "--d",
            "None",
            "--e",
            '{"0": 2}',
            "--f",
            "text",
            "--g",
            "true",
        ]
    )
    assert plugins == ["ema", "-progress"]
    assert options == {"a": 1, "b_c": 0.001, "d": None, "e": {"0": 2}, "f": "text", "g": True}
    assert listed("ema,-x, m:C") == listed(["ema", "-x", "m:C"]) == ["ema", "-x", "m:C"]


def test_a_type_is_parsed_as_far_as_it_can_be_written():
    from datetime import timedelta

    assert parsable(int | None) == int | None
    assert parsable(str | int | bool) == bool | int | str
    assert parsable(int | timedelta | None) == int | None
    assert parsable(os.PathLike | str) is str


def test_help_has_every_option_with_its_default_and_type(run):
    code, out, _ = run("fit", "--module", "net.py:Net", "--data", "net.py:data", "--help")
    assert code == 0
    text = " ".join(out.split())
    assert "'clip' of lightloop 0.1.0 (on request): Clip the gradients" in text
    assert "or ratio of norms of the gradients; None and 0 are off. (default: None) (type: " in text
    assert "--module_args.hidden HIDDEN How wide it is. (type: int, default: 8)" in text
    assert "--data_args.batches" in text
    from lightloop.host.options import options_of
    from lightloop.toolkit import discover

    keywords = [keyword for found in discover().values() if found.plugin for keyword in options_of(found.plugin)]
    assert [keyword for keyword in keywords if f"--{keyword} " not in text] == []


def test_a_null_is_kept_in_the_config_of_a_run(run, tmp_path):
    said = [
        "--module",
        "net.py:Optional",
        "--data",
        "net.py:data",
        "--max_epochs=1",
        "--save_every",
        "null",
        "--plugins",
        "-progress,-model_summary",
    ]
    said += ["--module_args.dropout", "null", "--module_args.depth=null", "--module_args.names", "{a: null}"]
    assert run("fit", *said, "--output", "one.pt")[0] == 0
    config = tmp_path / "runs/Optional/version_0/config.yaml"
    kept = yaml.safe_load(config.read_text())
    assert kept["module_args"] == {"dropout": None, "depth": None, "names": {"a": None}}
    assert (kept["save_every"], "monitor" in kept, "config" in kept) == (None, False, False)
    code, _, err = run("fit", "--config", str(config), "--output", "two.pt")
    assert (code, err) == (0, "")
    one, two = torch.load("one.pt"), torch.load("two.pt")
    assert one["kept"].tolist() == [True, True, True]
    assert all(torch.equal(one[name], two[name]) for name in one)
    again = tmp_path / "runs/Optional/version_1/config.yaml"
    assert again.read_text() == config.read_text()


def test_a_config_alone_makes_no_directory(run, tmp_path):
    said = [
        "--module",
        "net.py:Net",
        "--data",
        "net.py:data",
        "--max_epochs=1",
        "--plugins",
        "-progress,-model_summary",
    ]
    assert run("fit", *said, "--enable_checkpointing", "false", "--logger", "false")[0] == 0
    assert not (tmp_path / "runs").exists()


def test_the_config_of_a_run_reproduces_it(run, tmp_path):
    said = ["--module", "net.py:Net", "--data", "net.py:data", "--module_args.hidden", "5", "--data_args.batches=3"]
    said += ["--max_epochs", "2", "--accumulate_grad_batches", "{0: 2, 1: 1}", "--plugins", "-progress,-model_summary"]
    code, out, err = run("fit", *said, "--output", "one.pt")
    assert (code, err) == (0, "")
    assert out.startswith("finished after 2 epochs and 5 steps\n")
    config = tmp_path / "runs/Net/version_0/config.yaml"
    assert re.search(r"^seed: \d+$", config.read_text(), re.MULTILINE)
    code, out, _ = run("fit", "--config", str(config), "--output", "two.pt")
    assert code == 0
    one, two = torch.load("one.pt"), torch.load("two.pt")
    assert one["net.0.weight"].shape == (5, 4)
    assert all(torch.equal(one[name], two[name]) for name in one)
    code, out, _ = run("test", "--config", str(config), "--weights", "one.pt", "--output", "metrics.json")
    assert (code, out.split()[0]) == (0, "test_loss")
    assert list(json.loads((tmp_path / "metrics.json").read_text())) == ["test_loss"]
    assert run("validate", "--config", str(config), "--weights", "one.pt")[0] == 0
    assert run("predict", "--config", str(config), "--weights", "one.pt", "--output", "outputs.pt")[0] == 0
    assert [tuple(output.shape) for output in torch.load("outputs.pt")] == [(8, 3)] * 3


def test_a_later_flag_counts_more_than_the_config(run, tmp_path):
    (tmp_path / "c.yaml").write_text(
        "module: net.py:Net\ndata: net.py:data\nmax_epochs: 3\nplugins: ['-*', duration]\nmodule_args: {hidden: 2}\n"
    )
    assert run("fit", "--config", "c.yaml")[1].startswith("finished after 3 epochs and 12 steps")
    assert run("fit", "--config", "c.yaml", "--max_epochs", "1")[1].startswith("finished after 1 epochs and 4 steps")
    (tmp_path / "c.yaml").write_text("modul: net.py:Net")
    code, _, error = run("fit", "--config", "c.yaml")
    assert (code, error.partition(" or ")[0]) == (2, "lightloop fit: there is no option 'modul'. Did you mean 'module'")


def test_an_error_in_the_run_is_code_1_with_a_last_line_that_says_where(run):
    code, _, err = run("fit", "--module", "net.py:Fails", "--data", "net.py:data", "--plugins", "-*")
    assert code == 1
    assert err.splitlines()[0] == "Traceback (most recent call last):"
    assert err.splitlines()[-1] == "lightloop fit: RuntimeError: boom (at epoch 0, batch 0)"


def test_check_holds_a_plugin_to_the_contract(run):
    code, out, _ = run("check", "throughput", "--processes", "1")
    assert code == 0, out
    assert re.search(r"^1\d passed, 1 skipped", out)  # it runs in one process
    code, out, _ = run("check", "ema", "--ema_decay", "0.9", "--processes", "1", "--boundaries", "0")
    assert (code, re.search(r"^1\d passed, 2 skipped", out) is not None) == (0, True), out  # nor is it killed
    code, out, _ = run("check", "accumulate", "--accumulate_grad_batches", "0", "--processes", "1")
    assert code == 1
    assert "FAILED test_it_pickles\n" in out
    assert "  ValueError: accumulate_grad_batches (accumulate.batches) must be a whole number from 1" in out
