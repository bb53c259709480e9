"""Installed plugins: found through real metadata on disk, a broken one apart."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from importlib.metadata import EntryPoint, distributions, version
from pathlib import Path

import pytest

from lightloop import PluginError, Trainer
from lightloop.host import discovery
from lightloop.host.selection import Selection
from lightloop.testing import Probe, probe_batches
from lightloop.toolkit import discover

GOOD = """
from lightloop import Plugin, option
class {cls}(Plugin):
    name = "{name}"
    size: int = option(0, "How much.")
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path in which distributions can be installed."""
    monkeypatch.syspath_prepend(tmp_path)
    discovery.warn_once.cache_clear()
    return tmp_path


def install(site: Path, distribution: str, source: str, *entries: str, version: str = "1.0") -> None:
    """Put a module, named as the distribution, and its metadata into ``site``."""
    module = distribution.replace("-", "_")
    (site / f"{module}.py").write_text(source)
    info = site / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    lines = "\n".join(f"{name} = {module}:{value}" for name, value in (entry.split("=") for entry in entries))
    (info / "entry_points.txt").write_text(f"[lightloop.plugins]\n{lines}\n")


def entries(site: Path) -> list[EntryPoint]:
    return [entry for dist in distributions(path=[str(site)]) for entry in dist.entry_points]


def forget(*modules: str) -> None:
    for module in modules:
        sys.modules.pop(module, None)


def test_installed_plugins_are_found_by_name_with_their_distribution(site):
    install(site, "dist-b", GOOD.format(cls="B", name="bb"), "bb=B", version="2.1")
    install(site, "dist-a", GOOD.format(cls="A", name="aa"), "aa=A")
    found = discover(entries(site), {})
    forget("dist_a", "dist_b")
    assert list(found) == ["aa", "bb"]
    assert [str(each) for each in found.values()] == ["'aa' of dist-a 1.0", "'bb' of dist-b 2.1"]
    assert [each.plugin.__name__ for each in found.values()] == ["A", "B"]


FAILS = """
from lightloop import Plugin, hookimpl
class Fails(Plugin):
    name = "fails"
    @hookimpl
    def after_batch(self, loop):
        raise ValueError("mine")
"""


def notes_of(plugin, **options):
    with pytest.raises((ValueError, RuntimeError)) as info:
        Trainer(["-*", *plugin], **options).fit(Probe(), probe_batches(2))
    return info.value.__notes__


def test_an_error_names_plugin_distribution_hook_epoch_and_batch(site):
    install(site, "dist-f", FAILS, "fails=Fails", version="2.1")
    kind = discover(entries(site), {})["fails"].plugin
    forget("dist_f")
    place = "at epoch 0, batch 0"
    assert notes_of([kind]) == ["in after_batch of plugin 'fails' (dist_f, dist-f 2.1)", place]

    class Mine(kind):
        name = "mine"

    assert notes_of([Mine]) == [f"in after_batch of plugin 'mine' ({__name__})", place]
    ours = f"lightloop_plugins.early_stopping, lightloop {version('lightloop')}"
    assert notes_of([], early_stop_callback=True, early_stopping_monitor="x", max_epochs=2) == [
        f"in after_epoch of plugin 'early_stopping:x' ({ours})",
        "at epoch 0, batch 2",
    ]


PLACED = """
from lightloop import Plugin, option
class A(Plugin):
    name = "{name}"
    before = {before!r}
    size: int = option(0, "How much.")
"""


def test_every_order_of_installation_and_of_listing_gives_the_same_order(site):
    for name, before in (("ka", ()), ("kb", ("ka",)), ("kc", ("ka",)), ("kd", ("kc",))):
        install(site, f"dist-{name}", PLACED.format(name=name, before=before), f"{name}=A")
    found = entries(site)
    assert len(found) == 4
    options = {f"{name}_size": 1 for name in ("ka", "kb", "kc", "kd")}
    orders = set()
    for order in itertools.permutations(found):
        for names in itertools.permutations(options):
            live = Selection(discover(order, {}), [], {name: options[name] for name in names}).live
            listed = Selection(discover(order, {}), [name.removesuffix("_size") for name in names], {}).live
            orders |= {tuple(plugin.name for plugin in plugins) for plugins in (live, listed)}
    forget("dist_ka", "dist_kb", "dist_kc", "dist_kd")
    assert orders == {("kb", "kd", "kc", "ka")}


def three(site):
    install(site, "dist-x", GOOD.format(cls="X", name="xx"), "xx=X")
    install(site, "dist-bad", "import nonexistent_thing", "mid=Mid")
    install(site, "dist-z", GOOD.format(cls="Z", name="zz"), "zz=Z")


def test_c39_a_broken_plugin_is_left_out_with_one_warning(site):
    three(site)
    with pytest.warns(UserWarning, match="left out") as warned:
        found = discover(entries(site), {})
    assert [str(w.message) for w in warned] == [
        "plugin 'mid' of dist-bad 1.0 is left out; it cannot be imported: "
        "ModuleNotFoundError: No module named 'nonexistent_thing'"
    ]
    assert [name for name, each in found.items() if each.plugin] == ["xx", "zz"]
    discover(entries(site), {})  # tells no second time
    live = Selection(found, ["xx"], {"zz_size": 2}).live
    assert [plugin.name for plugin in live] == ["xx", "zz"]
    with pytest.raises(PluginError) as info:
        Selection(found, ["mid"], {})
    assert str(info.value) == (
        "plugin 'mid' of dist-bad 1.0 was asked for; it cannot be imported: "
        "ModuleNotFoundError: No module named 'nonexistent_thing'"
    )
    assert isinstance(info.value.__cause__, ModuleNotFoundError)
    with pytest.raises(TypeError) as unknown:
        Selection(found, [], {"mid_size": 2})
    assert str(unknown.value) == (
        "Trainer has no option 'mid_size'. Did you mean 'zz_size' or 'xx_size'? Plugin 'mid', which might have it, "
        "cannot be imported: ModuleNotFoundError: No module named 'nonexistent_thing'."
    )
    forget("dist_x", "dist_z")


def test_c39_strictness_makes_it_an_error(site):
    three(site)
    with pytest.raises(PluginError, match=r"'mid' of dist-bad 1.0 is left out; it cannot be imported: ModuleNotFound"):
        discover(entries(site), {"LIGHTLOOP_STRICT": "1"})
    forget("dist_x", "dist_z")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import sys; sys.exit('no')", "SystemExit: no"),
        ("Mid = 3", "TypeError: dist_bad:Mid is not a subclass of lightloop.Plugin"),
        ("class Mid: pass", "TypeError: dist_bad:Mid is not a subclass of lightloop.Plugin"),
        ("", "AttributeError: module 'dist_bad' has no attribute 'Mid'"),
        (
            GOOD.format(cls="Mid", name="other"),
            "ValueError: its entry point is called 'mid' and its class 'other'; they must agree",
        ),
        (
            GOOD.format(cls="Mid", name="m d"),
            "TypeError: Mid.name must be letters, digits, - and _; it is 'm d'",
        ),
        ("from lightloop import Plugin\nclass Mid(Plugin): pass", "TypeError: dist_bad:Mid has no name"),
        ("this is no Python", "SyntaxError"),
    ],
)
def test_every_way_to_be_broken_is_told(site, source, problem):
    install(site, "dist-bad", source, "mid=Mid")
    with pytest.warns(UserWarning, match="left out") as warned:
        found = discover(entries(site), {})
    forget("dist_bad")
    assert found["mid"].plugin is None
    start = f"plugin 'mid' of dist-bad 1.0 is left out; it cannot be imported: {problem}"
    assert str(warned[0].message)[: len(start)] == start


def test_c79_one_plugin_found_twice_is_one(site):
    install(site, "dist-a", GOOD.format(cls="A", name="aa"), "aa=A")
    twice = entries(site) * 2
    assert list(discover(twice, {})) == ["aa"]
    forget("dist_a")


def test_c79_two_plugins_of_one_name_are_an_error_that_names_both(site):
    install(site, "dist-a", GOOD.format(cls="A", name="aa"), "aa=A")
    install(site, "dist-b", GOOD.format(cls="A", name="aa"), "aa=A")
    both = sorted(entries(site), key=lambda entry: entry.value)
    with pytest.raises(PluginError) as info:
        discover(both, {})
    assert str(info.value) == (
        "two distributions call a plugin 'aa': dist-a (dist_a:A) and dist-b (dist_b:A). "
        "Uninstall one of them, or set LIGHTLOOP_WITHOUT=aa to run without both"
    )
    assert discover(both, {"LIGHTLOOP_WITHOUT": "aa"})["aa"].plugin is None
    forget("dist_a", "dist_b")


def test_c79_one_class_under_two_names_is_called_by_its_own(site):
    install(site, "dist-a", GOOD.format(cls="A", name="aa"), "aa=A", "bb=A")
    with pytest.warns(UserWarning, match="'bb' of dist-a 1.0 is left out; .* they must agree"):
        found = discover(entries(site), {})
    assert [name for name, each in found.items() if each.plugin] == ["aa"]
    forget("dist_a")


def test_who_is_left_out_is_not_imported(site):
    install(site, "dist-bad", "raise SystemExit('imported')", "mid=Mid")
    with pytest.warns(UserWarning, match="leaves out 'other', and there is no such plugin"):
        found = discover(entries(site), {"LIGHTLOOP_WITHOUT": " other , mid "})
    assert found["mid"].problem == "is left out by LIGHTLOOP_WITHOUT"
    with pytest.raises(
        PluginError, match=r"^plugin 'mid' of dist-bad 1.0 was asked for; it is left out by LIGHTLOOP_WITH"
    ):
        Selection(found, ["mid"], {})
    assert Selection(found, ["-mid"], {}).live == []
    with pytest.raises(
        TypeError, match=r"'mid_size'. Plugin 'mid', which might have it, is left out by LIGHTLOOP_WITHOUT"
    ):
        Selection(found, [], {"mid_size": 1})


def test_only_our_own_can_be_asked_for(site):
    install(site, "dist-bad", "raise SystemExit('imported')", "mid=Mid")
    install(site, "lightloop", GOOD.format(cls="A", name="aa"), "aa=A")
    (site / "lightloop.py").rename(site / "ours.py")
    info = site / "lightloop-1.0.dist-info/entry_points.txt"
    info.write_text(info.read_text().replace("lightloop:A", "ours:A"))
    found = discover(entries(site), {"LIGHTLOOP_DISCOVER": "0"})
    forget("ours")
    assert {name: each.problem for name, each in found.items()} == {
        "aa": None,
        "mid": "is left out by LIGHTLOOP_DISCOVER=0",
    }


PROGRAM = """
import torch, warnings
from lightloop import Module, Trainer
from lightloop.toolkit import discover
class M(Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))
    def training_step(self, batch):
        return batch * self.w
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)
m = M()
Trainer(["-*"]).fit(m, [torch.tensor(2.0)])
Trainer(["-*"]).fit(m, [torch.tensor(2.0)])
print(m.w.item(), [n for n, f in discover().items() if n in ("aa", "mid") and f.plugin])
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("environ", "found", "warnings"),
    [
        ({}, "['aa']", 1),
        ({"LIGHTLOOP_WITHOUT": "mid,aa"}, "[]", 0),
    ],
)
def test_a_program_runs_in_spite_of_what_is_installed(site, environ, found, warnings):
    install(site, "dist-a", GOOD.format(cls="A", name="aa"), "aa=A")
    install(site, "dist-bad", "raise ImportError('broken')", "mid=Mid")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, f"-4.0 {found}"), done.stderr
    assert done.stderr.count("plugin 'mid' of dist-bad 1.0 is left out; it cannot be imported") == warnings


def test_what_is_installed_or_removed_while_the_process_runs_is_found_and_gone(site):
    assert "late" not in discover()
    install(site, "dist-late", GOOD.format(cls="Late", name="late"), "late=Late")
    os.utime(site, (1, 1))  # the clock of the file system may not have moved on since the folder was made
    assert discover()["late"].distribution == "dist-late"
    sys.path.remove(str(site))
    assert "late" not in discover()
    sys.path.insert(0, str(site))
    (site / "dist_late-1.0.dist-info").rename(site / "gone")
    os.utime(site, (2, 2))
    assert "late" not in discover()
    forget("dist_late")
