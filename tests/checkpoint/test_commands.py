"""The command ``lightloop checkpoint``: what it shows, that it changes nothing, and what it takes from others."""

import csv
import hashlib
import json
import os
import re
import shutil
import subprocess
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import safetensors.torch
import torch

from lightloop import Trainer
from lightloop.cli import front
from lightloop.testing import Probe, TinyClassifier, classification_batches, probe_batches
from lightloop_plugins.checkpoint.commands import text
from lightloop_plugins.checkpoint.commands.compare import distance
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.manifest import write_manifest
from lightloop_plugins.checkpoint.format.safetensors import from_bytes, to_bytes
from lightloop_plugins.checkpoint.sharded.index import Entry, Part, shard_file, write_index
from lightloop_plugins.checkpoint.storage.local import LocalFolder
from lightloop_plugins.checkpoint.weights import foreign
from lightloop_plugins.checkpoint.weights.unpickle import read_foreign

QUIET = ["-progress", "-model_summary"]
NAMES = [f"step-{n:09d}-batch-{n:09d}" for n in (2, 4, 6)]
OWN = ["lightloop", version("lightloop")]


class Net(TinyClassifier):
    def __init__(self, lr=0.1):
        super().__init__(lr)
        self.save_hyperparameters()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run with three checkpoints and averaged weights, which no test may change."""
    root = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)
    module = Net(0.05)
    options = {"save_every": 2, "save_last": 3, "monitor": "val_loss", "ema_decay": 0.5}
    trainer = Trainer(QUIET, default_root_dir=root, **options)
    trainer.fit(module, classification_batches(6), classification_batches(2))
    return trainer.run_dir / "checkpoints", module, trainer.plugin("ema").average


@pytest.fixture
def folder(trained, tmp_path):
    """A copy of its checkpoints."""
    shutil.copytree(trained[0], tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


@pytest.fixture
def run(capsys):
    def call(*arguments):
        code = front.main(["checkpoint", *map(str, arguments)])
        return code, *capsys.readouterr()

    return call


def test_sizes_for_people():
    assert [text.size(n) for n in (0, 999, 1000, 999_999, 10**7, 3 * 10**15)] == [
        "0 B", "999 B", "1.0 kB", "1000.0 kB", "10.0 MB", "3000.0 TB"
    ]  # fmt: skip


def damage(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def snapshot(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ------------------------------------------------------------------------------------------------- list, inspect, verify


def test_list_tells_of_each_what_it_is_and_whether_it_verifies(run, folder):
    code, out, err = run("list", folder)
    rows = [re.split(r"  +", line) for line in out.splitlines()]
    assert rows[:2] == [[str(folder)], ["CHECKPOINT", "STEP", "EPOCH", "SAVED", "METRIC", "SIZE", "RUN", "CONDITION"]]
    assert [row[:3] for row in rows[2:]] == [[NAMES[0], "2", "0"], [NAMES[1], "4", "0"], [NAMES[2], "6", "1"]]
    assert [row[-1] for row in rows[2:]] == ["verified"] * 3
    manifest = LocalFolder(folder).manifest(NAMES[2])
    assert rows[4][3:7] == [
        manifest.body["saved_at"].replace("T", " ").removesuffix("+00:00"),
        f"val_loss={manifest.body['metrics']['val_loss']:.6g}",
        f"{manifest.size / 1000:.1f} kB",
        manifest.run,
    ]
    assert (code, err) == (0, "")


def test_list_says_what_is_wrong_with_each_and_renames_nothing(run, folder):
    damage(folder / NAMES[0] / "tensors.safetensors")
    (folder / NAMES[1] / "state.json").unlink()
    (folder / NAMES[2]).rename(folder / f".bad-{NAMES[2]}")
    (folder / "notes.txt").write_text("mine")
    before = snapshot(folder)
    code, out, _ = run("list", folder)
    assert [re.split(r"  +", line)[-1] for line in out.splitlines()[2:]] == [
        "kept aside as damaged, verified",
        "tensors.safetensors has changed since it was written",
        "is damaged: 'state.json' is missing",
    ]
    assert code == 1
    assert run("list", folder, "--quick")[1].splitlines()[3].endswith("not verified")
    found = json.loads(run("list", folder, "--json")[1])
    assert [(each["name"], bool(each["problems"])) for each in found] == [
        (f".bad-{NAMES[2]}", False), (NAMES[0], True), (NAMES[1], True)
    ]  # fmt: skip
    assert snapshot(folder) == before


def test_a_run_and_a_folder_of_runs_are_places_too(run, trained, monkeypatch):
    checkpoints = trained[0]
    wanted = run("list", checkpoints)
    assert run("list", checkpoints.parent) == run("list", checkpoints.parents[2]) == wanted
    monkeypatch.setenv("LIGHTLOOP_RUNS", str(checkpoints.parents[2]))
    assert run("list") == wanted
    assert run("list", checkpoints / NAMES[0])[1].splitlines()[2].startswith(NAMES[0])


def test_other_metrics_and_weights_alone_in_the_list(run, tmp_path):
    Trainer(QUIET, checkpoint_dir=tmp_path, save_weights_only=True).fit(Net(), classification_batches(1))
    row = run("list", tmp_path, "--metric", "loss")[1].splitlines()[2]
    assert re.search(r"  loss=\d.*  verified, weights alone$", row)


def test_checkpoints_in_other_places(run):
    place = "memory://lightloop-commands"
    Trainer(QUIET, checkpoint_dir=place).fit(Probe(), probe_batches(2))
    code, out, _ = run("list", place)
    assert (code, out.splitlines()[2].split()[0]) == (0, NAMES[0])
    assert "tensors.safetensors" in run("inspect", place)[1]
    assert run("diff", place, place)[0] == run("verify", place)[0] == 0
    import fsspec

    fsspec.filesystem("memory").rm("/lightloop-commands", recursive=True)


def test_inspect_shows_all_and_reads_no_tensor(run, folder, monkeypatch):
    monkeypatch.setattr(torch, "frombuffer", None)
    code, out, err = run("inspect", folder)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == f"checkpoint  {folder}/{NAMES[2]}"
    sections = dict(re.findall(r"^(\w[^\n]*)\n((?:  [^\n]*\n)+)", out, flags=re.MULTILINE))
    assert sections["counters"].split() == [
        "step",
        "6",
        "batch",
        "6",
        "epoch",
        "1",
        "batch_idx",
        "0",
        "global_step",
        "6",
    ]
    assert sections["hyperparameters"].split() == ["lr", "0.05"]
    plugins = [line.split() for line in sections["plugins, in their order"].splitlines()]
    assert [row for row in plugins if row[0] in ("ema", "checkpoint")] == [
        ["ema", "lightloop_plugins.ema,", *OWN, "state", "1"],
        ["checkpoint", "lightloop_plugins.checkpoint.plugin,", *OWN, "state", "1"],
    ]
    assert re.search(r"^  module\.parameters\.net\.0\.weight +\[8, 4\] +float32 +128 B$", out, re.MULTILINE)
    assert "decay=0.5" in sections["options"]
    about = json.loads(run("inspect", folder / NAMES[0], "--json")[1])
    assert (about["step"], about["counters"]["epoch"], about["format"]) == (2, 0, 1)
    assert about["tensors"]["module.parameters.net.0.weight"] == {"shape": [8, 4], "dtype": "float32", "size": 128}
    assert about["files"]["tensors.safetensors"]["size"] == (folder / NAMES[0] / "tensors.safetensors").stat().st_size


def test_what_a_stranger_wrote_moves_no_cursor(run, folder):
    (folder / f"{NAMES[0]}").rename(folder / ".bad-x")
    body = dict(LocalFolder(folder).manifest(NAMES[2]).body)
    files = LocalFolder(folder).manifest(NAMES[2]).files
    body["metrics"] = {"\x1b[2Jloss": 1.0}
    (folder / NAMES[2] / "MANIFEST.json").write_bytes(write_manifest(body, files))
    assert r"\x1b[2Jloss  1.0" in run("inspect", folder / NAMES[2])[1]


def test_verify_names_each_damaged_file(run, folder):
    assert run("verify", folder) == (0, "".join(f"{folder}/{name}: verified\n" for name in NAMES), "")
    damage(folder / NAMES[1] / "tensors.safetensors")
    state = folder / NAMES[1] / "state.json"
    state.write_bytes(state.read_bytes()[:-7])
    with open(folder / NAMES[2] / "tensors.safetensors", "ab") as stream:
        stream.write(b"more")
    (folder / NAMES[0] / "state.json").unlink()
    (folder / NAMES[0] / "state.json").symlink_to(folder / NAMES[2] / "state.json")
    sizes = {name: LocalFolder(folder).manifest(name).files for name in NAMES}
    before = snapshot(folder)
    code, out, _ = run("verify", folder)
    assert out.splitlines() == [
        f"{folder}/{NAMES[0]}: state.json cannot be read: state.json is a link, and not a regular file",
        f"{folder}/{NAMES[1]}: tensors.safetensors has changed since it was written; "
        f"state.json has {sizes[NAMES[1]]['state.json'][0] - 7} bytes, not {sizes[NAMES[1]]['state.json'][0]}",
        f"{folder}/{NAMES[2]}: tensors.safetensors has more than {sizes[NAMES[2]]['tensors.safetensors'][0]} bytes",
    ]
    assert code == 1
    damage(folder / NAMES[1] / "MANIFEST.json")
    assert "MANIFEST.json" in run("verify", folder / NAMES[1])[1]
    assert set(snapshot(folder)) == set(before)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["list", "nowhere"], "lightloop checkpoint list: there is no folder nowhere: give a checkpoint, a folder of them, a run, or a folder of runs"),
        (["inspect", "step-000000001-batch-000000001"], "lightloop checkpoint inspect: there is no checkpoint step-000000001-batch-000000001"),
        (["export", "x", "y.onnx"], "lightloop checkpoint: the file must end in .safetensors, .pt, .pth, .bin; it is 'y.onnx'"),
        (["import", "none.pt", "there"], "lightloop checkpoint import: there is no file none.pt"),
        (["import", "none.pt", "there.pt"], "lightloop checkpoint: TARGET must be a .safetensors file or a folder; it is 'there.pt'"),
        (["lst"], "lightloop checkpoint: argument action: invalid choice: 'lst' (choose from "),
        ([], "lightloop checkpoint: the following arguments are required: action; see lightloop checkpoint --help"),
    ],
)  # fmt: skip
def test_an_error_is_one_line_and_a_code(run, tmp_path, monkeypatch, arguments, error):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2 if err.startswith("lightloop checkpoint:") else 1, "", 1)
    assert err.startswith(error)


# ----------------------------------------------------------------------------------------------------------------- diff


def test_diff_says_what_differs_and_by_how_much(run, folder):
    assert run("diff", folder, folder / NAMES[2]) == (
        0, f"- {folder}/{NAMES[2]}\n+ {folder}/{NAMES[2]}\n\nthey are the same\n", ""
    )  # fmt: skip
    code, out, _ = run("diff", folder / NAMES[0], folder / NAMES[1], "--limit", "0")
    assert code == 1
    assert re.search(r"^  global_step +2 +-> +4$", out, re.MULTILINE)
    assert re.search(r"^  plugins.ema.state.updates +2 +-> +4$", out, re.MULTILINE)
    one, other = (LocalFolder(folder).load(name)[1] for name in NAMES[:2])
    a, b = (state["module"]["parameters"]["net.0.weight"] for state in (one, other))
    rows = {line.split()[0]: line.split()[-2:] for line in out.splitlines() if "float32[" in line}
    assert rows["module.parameters.net.0.weight"] == [str(int((a != b).sum())), f"{(a - b).abs().max():.3g}"]
    found = json.loads(run("diff", folder / NAMES[0], folder / NAMES[1], "--json")[1])
    tensor = next(each for each in found["state"] if each["path"] == "module.parameters.net.0.weight")
    assert tensor["largest"] == (a.double() - b.double()).abs().max().item()
    assert {each["path"] for each in found["manifest"]} >= {"counters.global_step", "metrics.loss"}
    assert "more; --limit 0 shows all" in run("diff", folder / NAMES[0], folder / NAMES[1], "--limit", "1")[1]


def test_diff_of_runs_with_other_plugins_and_options(run, folder, tmp_path):
    options = {"save_every": 2, "save_last": 3, "gradient_clip_val": 1.0}
    Trainer(QUIET, checkpoint_dir=tmp_path / "other", **options).fit(Net(), classification_batches(6))
    found = json.loads(run("diff", folder, tmp_path / "other", "--json")[1])
    said = {each["path"]: (each["one"], each["other"]) for each in found["manifest"]}
    assert said["plugins.ema"][1] == said["plugins.clip"][0] == "absent"
    assert said["options.clip.limit"] == ("absent", "1.0")
    assert said["options.checkpoint.monitor"] == ("'val_loss'", "None")
    assert {each["one"] for each in found["state"] if "ema.state.average" in each["path"]} == {
        "float32[8]", "float32[8, 4]", "float32[3]", "float32[3, 8]"
    }  # fmt: skip


def test_diff_shows_another_order_of_plugins(run, folder):
    name, row = NAMES[2], ["metrics", "plugins"]
    files = LocalFolder(folder).manifest(name).files
    body = {key: value for key, value in LocalFolder(folder).manifest(name).body.items() if key not in (*row, "files")}
    for place, plugins in (("one", ["a", "b", "c"]), ("other", ["b", "a", "d"])):
        shutil.copytree(folder / name, folder / place / name)
        rows = [[key, "m", 1] for key in plugins]
        manifest = write_manifest({**body, "metrics": {}, "plugins": rows}, files)
        (folder / place / name / "MANIFEST.json").write_bytes(manifest)
    found = json.loads(run("diff", folder / "one", folder / "other", "--json")[1])
    assert [(each["path"], each["one"], each["other"]) for each in found["manifest"]] == [
        ("plugins.c", "m, state 1", "absent"),
        ("plugins.d", "absent", "m, state 1"),
        ("plugins.their order", "a, b", "b, a"),
    ]
    assert found["state"] == []


def test_a_checkpoint_that_several_ranks_have_written(run, folder, tmp_path):
    """The same content, but for one tensor, whose rows are in files of two ranks."""
    whole = LocalFolder(folder)
    manifest, name = whole.manifest(NAMES[2]), "module.parameters.net.0.weight"
    tensors = from_bytes(bytearray((folder / NAMES[2] / "tensors.safetensors").read_bytes()), "it")
    weight, place = tensors.pop(name), tmp_path / "split" / NAMES[2]
    place.mkdir(parents=True)
    parts = [
        Part(shard_file(rank), (rows.start, 0), (len(rows), 4)) for rank, rows in enumerate([range(5), range(5, 8)])
    ]
    contents = {
        "state.json": (folder / NAMES[2] / "state.json").read_bytes(),
        "tensors.safetensors": b"".join(to_bytes(tensors)),
        "shards.json": write_index({name: Entry(weight.dtype, (8, 4), (0,), tuple(parts))}),
        parts[0].file: b"".join(to_bytes({name: weight[:5]})),
        parts[1].file: b"".join(to_bytes({name: weight[5:]})),
    }
    for file, data in contents.items():
        (place / file).write_bytes(data)
    files = {file: (len(data), hashlib.sha256(data).hexdigest()) for file, data in contents.items()}
    body = {key: value for key, value in manifest.body.items() if key != "files"}
    (place / "MANIFEST.json").write_bytes(write_manifest(body, files))
    assert run("diff", folder, place)[0] == run("verify", place)[0] == run("list", place.parent)[0] == 0
    assert json.loads(run("inspect", place, "--json")[1])["tensors"][name]["shape"] == [8, 4]
    assert run("export", place, tmp_path / "split.pt")[0] == run("export", folder, tmp_path / "whole.pt")[0] == 0
    one, other = (torch.load(tmp_path / file, weights_only=True) for file in ("split.pt", "whole.pt"))
    assert all(torch.equal(one[name], value) for name, value in other.items())
    damage(place / parts[1].file)
    assert run("verify", place)[1] == f"{place}: {parts[1].file} has changed since it was written\n"


def test_diff_of_a_damaged_checkpoint_is_an_error(run, folder):
    damage(folder / NAMES[0] / "tensors.safetensors")
    code, out, err = run("diff", folder / NAMES[0], folder / NAMES[1])
    assert (code, out) == (1, "")
    assert "is damaged: tensors.safetensors has changed since it was written" in err


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        ([1.0, 2.0, 5.0], [1.0, 2.5, 4.0], (1.0, 2)),
        ([0.0, 1.0], [-0.0, 1.0], (0.0, 1)),
        ([float("nan")], [float("nan")], (0.0, 0)),
        ([], [], (0.0, 0)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.complex64])
def test_the_distance_of_two_tensors(a, b, wanted, dtype):
    assert distance(torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype)) == wanted


def test_a_difference_that_is_no_number_is_one():
    largest, elements = distance(torch.tensor([1.0]), torch.tensor([float("nan")]))
    assert (largest != largest, elements) == (True, 1)


# --------------------------------------------------------------------------------------------------------------- export


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
@pytest.mark.parametrize("averaged", [False, True])
def test_export_is_read_by_others_and_by_us(run, trained, tmp_path, kind, averaged):
    folder, module, average = trained
    target = tmp_path / f"out.{kind}"
    code, out, _ = run("export", folder, target, *["--ema"] * averaged)
    about = f"weights of step 6{', averaged' * averaged}, {text.size(target.stat().st_size)}"
    assert (code, out) == (0, f"{target}: {about}\n")
    read = safetensors.torch.load_file(target) if kind == "safetensors" else torch.load(target, weights_only=True)
    wanted = average if averaged else module.state_dict()
    assert list(read) == list(module.state_dict()) if kind == "pt" else sorted(read) == sorted(module.state_dict())
    assert all(torch.equal(read[name], value) for name, value in wanted.items())
    if kind == "safetensors":
        loaded = Net.load_from_checkpoint(target)
        assert loaded.hparams == {"lr": 0.05}
        assert all(torch.equal(loaded.state_dict()[name], value) for name, value in wanted.items())


def test_export_replaces_no_file_and_leaves_none_behind(run, trained, tmp_path, monkeypatch):
    target = tmp_path / "out.pt"
    target.write_text("mine")
    code, _, err = run("export", trained[0], target)
    assert (code, err) == (2, f"lightloop checkpoint: {target} is there already; --force replaces it\n")

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        assert run("export", trained[0], target, "--force")[0] == 1
    assert (os.listdir(tmp_path), target.read_text()) == (["out.pt"], "mine")
    assert run("export", trained[0], target, "--force")[0] == 0
    Trainer(QUIET, checkpoint_dir=tmp_path / "plain").fit(Net(), classification_batches(1))
    code, _, err = run("export", tmp_path / "plain", tmp_path / "ema.pt", "--ema")
    assert code == 1
    assert "has no averaged weights: the plugin 'ema' keeps them; plugins there are " in err


def test_export_of_a_folder_passes_over_what_is_damaged(run, folder, tmp_path):
    damage(folder / NAMES[2] / "tensors.safetensors")
    code, _, err = run("export", folder / NAMES[2], tmp_path / "out.pt")
    assert code == 1
    assert "tensors.safetensors has changed since it was written" in err
    with pytest.warns(UserWarning, match=f"{NAMES[2]} is damaged: .*; passed over$"):
        assert "weights of step 4," in run("export", folder, tmp_path / "out.pt")[1]
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == NAMES


# --------------------------------------------------------------------------------------------------------------- import


def lightning_file(path, module, **more):
    """A file of the layout that Lightning 2.6 writes."""
    optimizer = torch.optim.Adam(module.parameters())
    torch.save(
        {
            "epoch": 3,
            "global_step": 40,
            "pytorch-lightning_version": "2.6.6",
            "state_dict": module.state_dict(),
            "loops": {"fit_loop": {"state_dict": {}, "epoch_loop.batch_progress": {"total": {"ready": 40}}}},
            "callbacks": {
                "ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(0.5), "best_k_models": {}}
            },
            "optimizer_states": [optimizer.state_dict()],
            "lr_schedulers": [],
            "hparams_name": "kwargs",
            "hyper_parameters": {"lr": 0.25},
            **more,
        },
        path,
    )


def test_a_lightning_checkpoint_is_imported_with_its_hyperparameters(run, tmp_path):
    module = TinyClassifier()
    lightning_file(tmp_path / "a.ckpt", module)
    code, out, err = run("import", tmp_path / "a.ckpt", tmp_path / "ours")
    name = "step-000000040-batch-000000000"
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"{tmp_path}/a.ckpt: a checkpoint of Lightning 2.6.6",
        "taken: 4 tensors, 268 B; hyperparameters: lr",
        "left behind: loops, callbacks, optimizer_states, lr_schedulers",
        f"{tmp_path}/ours/{name}: read it with Module.load_from_checkpoint(path), or train on with "
        "fit(module, data, resume=path), which begins at step 0 with these weights and everything else anew",
    ]
    manifest = LocalFolder(tmp_path / "ours").verify(name)
    assert (manifest.body["content"], manifest.body["counters"]["epoch"]) == ("weights", 3)
    assert manifest.body["imported"] == {
        "file": "a.ckpt", "sha256": foreign.digest(tmp_path / "a.ckpt"), "kind": "a checkpoint of Lightning 2.6.6"
    }  # fmt: skip
    assert run("import", tmp_path / "a.ckpt", tmp_path / "ours.safetensors")[0] == 0
    for place in (tmp_path / "ours", tmp_path / "ours" / name, tmp_path / "ours.safetensors"):
        loaded = Net.load_from_checkpoint(place)
        assert loaded.hparams == {"lr": 0.25}
        assert all(torch.equal(loaded.state_dict()[name], value) for name, value in module.state_dict().items())
    assert run("import", tmp_path / "a.ckpt", tmp_path / "ours")[0] == 0  # again, beside the first
    assert len(LocalFolder(tmp_path / "ours").names()) == 2


@pytest.mark.parametrize("kind", ["checkpoint", "safetensors"])
def test_training_begins_with_imported_weights_and_says_what_is_anew(run, tmp_path, kind):
    module = TinyClassifier()
    lightning_file(tmp_path / "a.ckpt", module)
    target = tmp_path / ("ours" if kind == "checkpoint" else "ours.safetensors")
    run("import", tmp_path / "a.ckpt", target)
    again, plain = Net(), Net()
    plain.load_state_dict(module.state_dict())
    options = {"checkpoint_dir": tmp_path / "run"}
    with pytest.warns(
        UserWarning, match="weights alone: training begins at step 0 with them; optimizers, schedules, plug"
    ):
        assert Trainer(QUIET, **options).fit(again, classification_batches(3), resume=target).global_step == 3
    Trainer(QUIET, enable_checkpointing=False).fit(plain, classification_batches(3))
    assert all(torch.equal(again.state_dict()[name], value) for name, value in plain.state_dict().items())
    with pytest.raises(CheckpointError, match="and resume_strict is set"):
        Trainer(QUIET, **options).fit(Net(), classification_batches(3), resume=target, resume_strict=True)
    with pytest.raises(
        CheckpointError, match=r"a.ckpt is no checkpoint of Lightloop: lightloop checkpoint import .*a.ckpt T"
    ):
        Trainer(QUIET, **options).fit(Net(), classification_batches(3), resume=tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match="is of another module than Probe"):
        Trainer(QUIET, **options).fit(Probe(), probe_batches(3), resume=target)


def test_a_plain_state_dict_and_prefixes(run, tmp_path):
    weights = {f"model.{name}": value for name, value in TinyClassifier().state_dict().items()}
    torch.save(weights, tmp_path / "a.bin")
    out = run("import", tmp_path / "a.bin", tmp_path / "a.safetensors", "--strip", "model.")[1]
    assert out.splitlines()[:3] == [
        f"{tmp_path}/a.bin: a state_dict", "taken: 4 tensors, 268 B; hyperparameters: none", "left behind: none"
    ]  # fmt: skip
    assert Net.load_from_checkpoint(tmp_path / "a.safetensors").lr == 0.1
    code, _, err = run("import", tmp_path / "a.bin", tmp_path / "b", "--strip", "net.")
    assert (code, err) == (
        1,
        "lightloop checkpoint import: 'model.net.0.weight' does not begin with 'net.'; 4 of 4 do not\n",
    )
    safetensors.torch.save_file(TinyClassifier().state_dict(), tmp_path / "theirs.safetensors")
    assert "a file of safetensors" in run("import", tmp_path / "theirs.safetensors", tmp_path / "c")[1]
    assert isinstance(Net.load_from_checkpoint(tmp_path / "c"), Net)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_nothing_is_run_without_trust_which_says_what_it_trusts(run, tmp_path):
    made = tmp_path / "made"
    lightning_file(
        tmp_path / "evil.ckpt", TinyClassifier(), callbacks=Evil(str(made)), hyper_parameters={"path": Path("x")}
    )
    code, out, err = run("import", tmp_path / "evil.ckpt", tmp_path / "ours")
    assert (code, out, made.exists(), (tmp_path / "ours").exists()) == (1, "", False, False)
    assert "has more than tensors and plain values in it: it names posix.mkdir. If you trust" in err
    assert "lightloop checkpoint import --trust" in err
    digest = foreign.digest(tmp_path / "evil.ckpt")
    code, out, err = run("import", tmp_path / "evil.ckpt", tmp_path / "ours", "--trust")
    assert (code, err, made.exists()) == (0, "", True)
    assert out.splitlines()[0] == (
        f"trusted: whatever code is in {tmp_path}/evil.ckpt (SHA-256 {digest}) is run with your account"
    )
    left = out.splitlines()[3]
    assert left == "left behind: hyperparameter path, loops, callbacks, optimizer_states, lr_schedulers"
    assert Net.load_from_checkpoint(tmp_path / "ours").hparams == {"lr": 0.1}


@pytest.mark.parametrize("data", [b"nonsense\n", b"", b"PK\x03\x04junk"])
def test_what_is_no_file_of_torch_is_said_to_be_none(run, tmp_path, data):
    (tmp_path / "a.pt").write_bytes(data)
    code, _, err = run("import", tmp_path / "a.pt", tmp_path / "ours")
    assert code == 1
    assert err.startswith(
        f"lightloop checkpoint import: {tmp_path}/a.pt is damaged, or no file that torch.save writes: "
    )
    assert err.count("\n") == 1
    assert len(err) < 300


def test_an_archive_that_is_packed_is_refused(run, tmp_path):
    torch.save({"a": torch.zeros(1000)}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as source, zipfile.ZipFile(tmp_path / "b.pt", "w") as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry), compress_type=zipfile.ZIP_DEFLATED)
    code, _, err = run("import", tmp_path / "b.pt", tmp_path / "ours")
    assert code == 1
    assert "is packed, as torch.save packs none" in err


def test_an_old_torch_reads_no_foreign_file(tmp_path, monkeypatch):
    torch.save({"a": torch.zeros(1)}, tmp_path / "a.pt")
    monkeypatch.setattr(torch, "__version__", "2.9.1")
    with pytest.raises(CheckpointError, match=r"CVE-2026-24747.*torch 2.10 or later"):
        read_foreign(tmp_path / "a.pt")


LIGHTNING = """
import sys, torch, lightning
from lightning.pytorch import LightningModule, Trainer

class Net(LightningModule):
    def __init__(self, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

torch.manual_seed(0)
data = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(5)]
module = Net(0.25)
trainer = Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
                  default_root_dir=sys.argv[1])
trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=None))
trainer.save_checkpoint(sys.argv[1] + "/real.ckpt")
torch.save(module.state_dict(), sys.argv[1] + "/weights.pt")
print(lightning.__version__)
"""
PEERS = Path("~/.cache/lightloop/peers/bin/python").expanduser()


@pytest.mark.torture
@pytest.mark.processes
@pytest.mark.skipif(not PEERS.exists(), reason=f"{PEERS}, an environment with Lightning in it, is not there")
def test_a_checkpoint_that_lightning_itself_has_written(run, tmp_path):
    environ = {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([PEERS, "-c", LIGHTNING, tmp_path], capture_output=True, text=True, check=False, env=environ)
    if "No module named 'lightning'" in done.stderr:
        pytest.skip(f"{PEERS} has no Lightning")
    assert done.returncode == 0, done.stderr[-2000:]
    code, out, err = run("import", tmp_path / "real.ckpt", tmp_path / "ours")
    assert (code, err) == (0, "")
    version = done.stdout.split()[-1]
    assert out.splitlines()[:3] == [
        f"{tmp_path}/real.ckpt: a checkpoint of Lightning {version}",
        "taken: 4 tensors, 268 B; hyperparameters: lr",
        "left behind: loops, callbacks, optimizer_states, lr_schedulers",
    ]
    loaded, wanted = Net.load_from_checkpoint(tmp_path / "ours"), torch.load(tmp_path / "weights.pt", weights_only=True)
    assert loaded.hparams == {"lr": 0.25}
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in wanted.items())
    assert LocalFolder(tmp_path / "ours").names() == ["step-000000010-batch-000000000"]


# ------------------------------------------------------------------------------------- the best, and what had finished


class Scored(Net):
    """Its validation score is given, by epoch."""

    scores = (3.0, 1.0, 2.0)

    def validation_step(self, batch):
        pass

    def on_validation_epoch_end(self):
        self.log("score", self.scores[self.current_epoch])

    def test_step(self, batch):
        self.log("sum", self.net[0].weight.sum())


def test_an_evaluation_takes_the_best_weights_that_were_saved(tmp_path):
    options = {"default_root_dir": tmp_path, "monitor": "score", "max_epochs": 3, "num_sanity_val_steps": 0}
    trainer, data = Trainer(QUIET, **options), classification_batches(2)
    module = Scored()
    trainer.fit(module, data, data)
    folder = LocalFolder(trainer.run_dir / "checkpoints")
    assert [int(name.split("-")[1]) for name in folder.names()] == [4, 6]
    sums = [folder.load(name)[1]["module"]["parameters"]["net.0.weight"].sum().item() for name in folder.names()]
    assert trainer.test(module, data) == {"sum": pytest.approx(sums[1])}
    with pytest.warns(DeprecationWarning, match="ckpt_path"):
        assert trainer.test(module, data, ckpt_path="best") == {"sum": pytest.approx(sums[0])}
    assert trainer.test(module, data, resume="auto") == {"sum": pytest.approx(sums[1])}
    assert trainer.test(Scored(), data, resume=folder.path / folder.names()[0]) == {"sum": pytest.approx(sums[0])}
    with pytest.raises(CheckpointError, match="training goes on from a path, or from 'auto'"):
        trainer.fit(Scored(), data, data, resume="best")


def test_what_a_trainer_goes_on_from_is_not_loaded_by_its_evaluations(tmp_path):
    data, module = classification_batches(2), Scored()
    Trainer(QUIET, checkpoint_dir=tmp_path).fit(Scored(), data)
    trainer = Trainer(QUIET, checkpoint_dir=tmp_path, resume="auto", max_epochs=2)
    before = module.net[0].weight.sum().item()
    assert trainer.test(module, data) == {"sum": pytest.approx(before)}
    path = tmp_path / LocalFolder(tmp_path).names()[0]
    wanted = LocalFolder(tmp_path).load(path.name)[1]["module"]["parameters"]["net.0.weight"].sum().item()
    trainer = Trainer(QUIET, checkpoint_dir=tmp_path, resume=path, max_epochs=2)
    assert trainer.test(module, data) == {"sum": pytest.approx(wanted)}  # as if a fit had begun from there
    trainer.fit(module, data)
    after = module.net[0].weight.sum().item()
    assert trainer.test(module, data) == {"sum": pytest.approx(after)} != {"sum": pytest.approx(wanted)}


def test_the_best_where_nothing_is_saved_or_ranked_is_an_error(tmp_path):
    data = classification_batches(2)
    for saves in (False, True):
        trainer = Trainer(QUIET, default_root_dir=tmp_path, enable_checkpointing=saves)
        with pytest.raises(
            CheckpointError, match="no run of this experiment has saved a checkpoint: fit with monitor= first"
        ):
            trainer.test(Scored(), data, resume="best")
    trainer = Trainer(QUIET, default_root_dir=tmp_path)
    trainer.fit(Scored(), data)
    with pytest.raises(
        CheckpointError, match=r"none of the 1 checkpoints in .* has a score: Trainer\(monitor='val_loss'\)"
    ):
        trainer.test(Scored(), data, resume="best")


def test_a_run_that_had_finished_says_so_and_goes_on_where_more_is_allowed(tmp_path, caplog):
    def again(**options):
        caplog.clear()
        trainer = Trainer(QUIET, default_root_dir=tmp_path, resume="auto", **options)
        steps = trainer.fit(Net(), classification_batches(2)).global_step
        told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        with open(tmp_path / "Net" / "version_0" / "metrics.csv", newline="") as file:
            rows = [row["step"] for row in csv.DictReader(file)]
        assert os.listdir(tmp_path / "Net") == ["version_0"]
        return steps, told, rows

    first = again(max_epochs=2)
    assert first[:2] == (4, [])
    for _ in range(2):  # however often
        steps, told, rows = again(max_epochs=2)
        assert (steps, rows) == (4, first[2])
        assert told == [
            "this run had finished at step 4, after 2 epochs (it has had its epochs): nothing was trained. It goes on if what "
            "ended it allows more, such as a higher max_epochs or max_steps. With another run_name, or without resume, a new "
            "run begins."
        ]
    assert again(max_epochs=3)[:2] == (6, [])
    assert "(max_steps=6 reached)" in again(max_steps=6)[1][0]
    assert again(max_steps=7)[:2] == (7, [])


def test_a_run_that_was_stopped_early_stays_so(tmp_path, caplog):
    options = {
        "checkpoint_dir": tmp_path,
        "resume": "auto",
        "max_epochs": 9,
        "num_sanity_val_steps": 0,
        "plugins": [*QUIET, "early_stopping"],
        "early_stopping_monitor": "score",
        "early_stopping_patience": 1,
    }
    data = classification_batches(2)
    for expected in ([], ["early stopping: score has not improved on 1 for 1 check"]):
        caplog.clear()
        assert Trainer(**options).fit(Scored(), data, data).global_step == 6
        told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert [re.search(r"\((.*?)\)", each)[1] for each in told] == expected
