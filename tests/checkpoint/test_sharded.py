"""Checkpoints of runs with several ranks: each writes its own part, and all of it is found again, by as many or by others."""

import errno
import functools
import json
import shutil

import pytest
import torch

from lightloop.testing.ranks import run_ranks, values_of
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.manifest import read_manifest, write_manifest
from lightloop_plugins.checkpoint.format.safetensors import from_bytes
from lightloop_plugins.checkpoint.sharded.index import INDEX, read_index
from lightloop_plugins.checkpoint.storage.local import LocalFolder
from lightloop_plugins.checkpoint.weights.load import export_weights
from tests.checkpoint.sharded_rig import DDP, FSDP, Net, again, beside, faulty, forgetful, guarded, life, odd, unwilling

pytestmark = pytest.mark.processes


TENSORS = ("weights", "optimizers", "average")


def same(found, wanted):
    """Equal to the bit, but for the losses, of which ``found`` has the last ones."""
    assert found["losses"] == wanted["losses"][-len(found["losses"]) :] != []
    for name in wanted.keys() - {"losses", *TENSORS}:
        assert found[name] == wanted[name]
    for name in TENSORS:
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("strategy", "at", "options"),
    [
        (FSDP, 8, {}),  # two batches in an open window, after a validation
        (FSDP, 15, {"async_save": True, "save_every": "2 batches"}),
        (FSDP, 5, {"precision": "bf16-mixed", "norm": False}),
        (DDP, 8, {}),
        (DDP, 12, {"ddp_broadcast_buffers": False, "ema_decay": 0.9}),
    ],
)
def test_two_ranks_go_on_to_the_bit(tmp_path, strategy, at, options):
    wanted = values_of(run_ranks(functools.partial(life, **options), 2, tmp_path / "whole", strategy))
    values_of(run_ranks(functools.partial(life, at=at, **options), 2, tmp_path / "broken", strategy))
    found = values_of(
        run_ranks(functools.partial(life, resume=str(tmp_path / "broken"), **options), 2, tmp_path / "broken", strategy)
    )
    for each, other in zip(found, wanted, strict=True):
        same(each, other)
        assert len(each["losses"]) == 20 - at
    assert found[0]["losses"] != found[1]["losses"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What comes out on rank 1 of a run of one epoch."""
    return values_of(run_ranks(functools.partial(life, epochs=1), 2, tmp_path_factory.mktemp("whole"), FSDP))[1]


@pytest.mark.parametrize("part", ["waiting", "differs", "random", "metrics"])
def test_without_what_a_rank_has_for_itself_they_would_not(tmp_path, undisturbed, part):
    values_of(run_ranks(forgetful, 2, tmp_path, part))
    found = values_of(run_ranks(functools.partial(life, epochs=1, resume=str(tmp_path)), 2, tmp_path, FSDP))
    with pytest.raises(AssertionError):
        same(found[1], undisturbed)


# ------------------------------------------------------------------------------------------------ what is in it


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run of two ranks that stopped at the end of its first epoch, and what it had in memory then."""
    folder = tmp_path_factory.mktemp("saved")
    return folder, values_of(
        run_ranks(functools.partial(life, epochs=1, accumulate=1, ema_decay=0.9), 2, folder, FSDP)
    )[0]


def test_each_rank_writes_its_part_and_nobody_gathers(saved):
    folder, outcome = saved
    (name,) = (path.name for path in folder.iterdir() if path.name.startswith("step-"))
    files = sorted(path.name for path in (folder / name).iterdir())
    shards = ["shard-00000.safetensors", "shard-00001.safetensors"]
    assert files == ["MANIFEST.json", *shards, INDEX, "state.json", "tensors.safetensors"]
    assert set(read_manifest((folder / name / "MANIFEST.json").read_bytes(), "it").files) == {*files} - {files[0]}
    tensors = [from_bytes(bytearray((folder / name / file).read_bytes()), file) for file in shards]
    for name_, whole in outcome["weights"].items():
        key = f"module.parameters.{name_}"
        if not name_.endswith(("running_mean", "running_var", "num_batches_tracked")):
            assert torch.equal(torch.cat([part[key] for part in tensors]), whole), "rank 0's rows, then rank 1's"
    assert {key for key in tensors[1] if key.startswith("ranks.")} == {
        key.replace("ranks.0", "ranks.1") for key in tensors[0] if key.startswith("ranks.0")
    } | {f"ranks.1.differs.buffers.body.1.{each}" for each in ("running_mean", "running_var")} | {
        "ranks.1.differs.generators.generator.1"
    }
    rest = from_bytes(bytearray((folder / name / "tensors.safetensors").read_bytes()), "rest")
    assert not any(key.startswith(("ranks.", "module.parameters.")) or key.endswith("exp_avg") for key in rest)


def test_one_process_loads_and_exports_the_whole_of_it(saved, tmp_path):
    folder, outcome = saved
    module = Net.load_from_checkpoint(folder)
    loaded = {name: value for name, value in module.state_dict().items() if isinstance(value, torch.Tensor)}
    torch.testing.assert_close(loaded, outcome["weights"], rtol=0, atol=0)
    export_weights(folder, tmp_path / "weights.safetensors")
    exported = from_bytes(bytearray((tmp_path / "weights.safetensors").read_bytes()), "exported")
    torch.testing.assert_close(exported, outcome["weights"], rtol=0, atol=0)


def shared(outcome):
    """What is the same on all ranks."""
    statistics = ("running_mean", "running_var")
    return (
        {n: t for n, t in outcome["weights"].items() if not n.endswith(statistics)},
        outcome["optimizers"],
        outcome["average"],
    )


def test_other_numbers_of_ranks_go_on_from_it(saved, tmp_path):
    folder, outcome = saved
    wanted, source = outcome, folder
    for epochs, (ranks, strategy) in enumerate([(1, FSDP), (4, FSDP), (3, FSDP), (2, DDP), (2, FSDP)], start=1):
        target = tmp_path / f"{ranks} {strategy['strategy']}"
        here = (target, strategy, source, epochs)
        values = values_of(run_ranks(again, ranks, *here)) if ranks > 1 else [again(*here)]
        for loaded, more in values:
            torch.testing.assert_close(shared(loaded), shared(wanted), rtol=0, atol=0)
            assert loaded["rates"] == wanted["rates"]
            assert more["steps"] > loaded["steps"] == wanted["steps"]
        wanted, source = values[0][1], target


def test_each_rank_writes_to_where_fsspec_reaches(tmp_path, undisturbed):
    place = f"local://{tmp_path}/there"
    values_of(run_ranks(functools.partial(life, epochs=1, at=8), 2, place, FSDP))
    found = values_of(run_ranks(functools.partial(life, epochs=1, resume=place), 2, place, FSDP))
    same(found[1], undisturbed)
    assert len(list((tmp_path / "there").glob(f"step-*/{INDEX}"))) == 2


# ---------------------------------------------------------------------------------------------- what goes wrong


def test_a_write_that_fails_on_one_rank_fails_on_all_and_the_older_one_stays(tmp_path):
    first, second = values_of(run_ranks(faulty, 2, tmp_path, 1, errno.ENOSPC))
    assert len(first) == len(second) > 3
    assert all("on rank 1: No space left on device" in each for each in (*first, *second)), first
    assert all("Older ones are untouched" in each for each in (*first, *second))


def test_training_goes_on_while_a_save_is_under_way(tmp_path):
    wanted = values_of(run_ranks(life, 2, tmp_path / "plain", FSDP))
    for (found, waited), other in zip(values_of(run_ranks(beside, 2, tmp_path / "threads")), wanted, strict=True):
        same(found, other)
        assert waited >= 6, "each rank has written each time"
    folder = LocalFolder(tmp_path / "threads")
    assert [folder.verify(name).batch for name in sorted(folder.names())] == [3, 6, 9, 12, 15, 18, 20]


def test_a_write_that_fails_beside_training_is_an_error_on_all_ranks(tmp_path):
    for outcome in run_ranks(unwilling, 2, tmp_path):
        assert outcome.error.startswith("CheckpointError: ")
        assert "on rank 1: No space left on device" in outcome.error
    assert LocalFolder(tmp_path).names() == []


@pytest.mark.parametrize("strategy", [DDP, FSDP])
def test_saving_under_a_rank_guard_is_an_error_and_no_hang(tmp_path, strategy):
    first, second = run_ranks(guarded, 2, tmp_path, strategy)
    assert "rank 0 is in barrier" in first.error
    assert "look for an `if rank == 0`" in first.error
    assert second.status == 1
    assert "RankError" in second.error, "that of rank 0, or its own"
    assert max(first.seconds, second.seconds) < 60, "nobody waited for the time-out of the strategy"


def test_a_state_that_cannot_be_stored_on_one_rank_ends_all(tmp_path):
    first, second = run_ranks(odd, 2, tmp_path)
    assert "cannot be stored" in second.error
    assert "the first error was on rank 1: CheckpointError" in first.error
    assert LocalFolder(tmp_path).names() == []


# ------------------------------------------------------------------------------------------------- of strangers

ENTRY = {"dtype": "torch.float32", "shape": [4, 2], "placements": [0], "parts": []}
ENTRY["parts"] = [["shard-00000.safetensors", [0, 0], [2, 2]], ["shard-00001.safetensors", [2, 0], [2, 2]]]
FILES = {f"shard-0000{number}.safetensors": (100, "") for number in range(3)}


def changed(**changes):
    return {"w": {**ENTRY, **changes}}


def parts(*of):
    return changed(parts=[[file, *rest] for file, rest in zip(FILES, of, strict=False)])


GRID = [[f"shard-{n:05d}.safetensors", [n % 2**k // 2 ** (k - 1) for k in range(1, 13)], [1] * 12] for n in range(4096)]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (changed(parts=[["../../etc/passwd", [0, 0], [4, 2]]]), "is no file of the checkpoint"),
        (changed(parts=[["/etc/passwd", [0, 0], [4, 2]]]), "is no file of the checkpoint"),
        (changed(parts=[["state.json", [0, 0], [4, 2]]]), "is no file of the checkpoint"),
        (changed(parts=[["shard-00009.safetensors", [0, 0], [4, 2]]]), "is no file of the checkpoint"),
        (changed(parts=[[None, [0, 0], [4, 2]]]), "a part has no file"),
        (parts(([0, 0], [3, 2]), ([2, 0], [1, 2])), "overlap"),
        (parts(([0, 0], [2, 2]), ([0, 0], [2, 2])), "overlap"),
        (parts(([0, 0], [2, 2]), ([1, 0], [2, 2])), "overlap"),
        (parts(([0, 0], [2, 2])), "do not make up its shape"),
        (parts(([0, 0], [2, 2]), ([3, 0], [2, 2])), "reaches beyond its shape"),
        (parts(([0, 0], [2, 2]), ([2], [2])), "another number of dimensions"),
        (parts(([0, 0], [2, 2]), ([-2, 0], [2, 2])), "no whole number from 0"),
        (parts(([0, 0], [2, 2]), ([2.0, 0], [2, 2])), "no whole number from 0"),
        (changed(shape=[2**40, 2**40], parts=[["shard-00000.safetensors", [0, 0], [2**40, 2**40]]]), "which has 100"),
        (changed(shape=[2**63 - 1], placements=None, parts=[]), "no whole number from 0"),
        (changed(shape=[1] * 65, parts=[]), "no possible shape"),
        (changed(placements=[7]), "no possible shape"),
        (changed(placements=["x"]), "no whole number from 0"),
        (changed(dtype="torch.save"), "torch.save"),
        (changed(extra=1), "other keys"),
        (changed(parts={}), "other keys"),
        (changed(parts=[ENTRY["parts"][0], ENTRY["parts"][0]]), "several parts in one file"),
        (changed(shape=[2] * 12, parts=GRID), "too many parts"),
        ([], "damaged"),
        ({"w": None}, "damaged"),
    ],
)
def test_an_index_that_cannot_be_is_refused(document, said):
    with pytest.raises(CheckpointError, match=said):
        read_index(json.dumps(document).encode(), FILES, "it")


def test_the_index_that_those_were_made_of_is_read():
    entry = read_index(json.dumps({"w": ENTRY}).encode(), FILES, "it")["w"]
    assert (entry.shape, entry.dtype, len(entry.parts)) == ((4, 2), torch.float32, 2)


def rewritten(folder, change):
    """The checkpoint in ``folder`` with another index, under a manifest that is right."""
    (name,) = (path for path in folder.iterdir() if path.name.startswith("step-"))
    document = json.loads((name / INDEX).read_text())
    change(document)
    (name / INDEX).write_text(json.dumps(document))
    manifest = read_manifest((name / "MANIFEST.json").read_bytes(), "it")
    digest = LocalFolder(folder)
    (name / INDEX).rename(name.parent / "aside")
    files = {**manifest.files, INDEX: digest.put(name.name, INDEX, [memoryview((name.parent / "aside").read_bytes())])}
    body = {key: value for key, value in manifest.body.items() if key not in ("format", "files")}
    (name / "MANIFEST.json").write_bytes(write_manifest(body, files))


def take_others(document):
    """Two tensors of one shape have each other's parts, under a file that has another shape for one of them."""
    weight, bias = document["module.parameters.head.weight"], document["module.parameters.head.bias"]
    weight["parts"][0][0], weight["parts"][1][0] = weight["parts"][1][0], weight["parts"][0][0]
    bias["dtype"] = "torch.int32"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (take_others, "has not the part of module.parameters.head"),
        (lambda document: document.pop("module.parameters.head.bias"), "the state has a broken tensor"),
        (lambda document: document.update({"module.buffers.body.1.running_mean": ENTRY}), "damaged"),
    ],
)
def test_an_index_that_does_not_fit_the_rest_is_refused(saved, tmp_path, change, said):
    folder, _ = saved
    shutil.copytree(folder, tmp_path / "copy")
    rewritten(tmp_path / "copy", change)
    with pytest.raises(CheckpointError, match=said):
        Net.load_from_checkpoint(tmp_path / "copy")


@pytest.mark.parametrize("file", ["shard-00001.safetensors", INDEX])
def test_a_damaged_part_is_noticed(saved, tmp_path, file):
    folder, _ = saved
    shutil.copytree(folder, tmp_path / "copy")
    (path,) = (tmp_path / "copy").glob(f"step-*/{file}")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=f"{file} has changed since it was written"):
        Net.load_from_checkpoint(tmp_path / "copy")
