"""An installed plugin that fails and that no run asks for is left out with a warning, whatever is wrong with it."""

from __future__ import annotations

import re
import sys
import warnings

import pytest

from lightloop import OrderError, PluginError, Trainer
from lightloop.cli.front import main
from lightloop.host import discovery
from lightloop.testing import Probe, classification_batches, probe_batches
from tests.core.mistakes import ANSWERS, DECLARED, DOUBTED, HEAD, REFUSED
from tests.core.test_authors import Asks, asking
from tests.core.test_discovery import install

BAD = HEAD.format(default=True)
HOOK = BAD + "    @hookimpl\n    def before_stp(self, loop): pass\n"
FAULTS = {
    "unknown hook": (HOOK, "hook 'before_stp' does not exist. Did you mean 'before_step'"),
    "is_default": (
        BAD + "    @classmethod\n    def is_default(cls): raise KeyError('MY_VARIABLE')\n",
        "is_default() raises KeyError: 'MY_VARIABLE'",
    ),
    "check": (BAD + "    def validate(self): raise ValueError('no licence')\n", "ValueError: no licence"),
    "order": (BAD + "    before, after = ('cpu',), ('cpu',)\n", "the plugins ask for an order that cannot be"),
    "group": (BAD + "    group = 'accelerator'\n", "'cpu' and 'mistaken' are both of the group 'accelerator'"),
    "conflicts": (BAD + "    conflicts = ('cpu',)\n", "plugins 'mistaken' and 'cpu' cannot both be live"),
    "answers": (
        BAD + "    @hookimpl\n    def move_batch(self, loop, batch): return batch\n",
        "both answer 'move_batch' and neither says which is asked first",
    ),
    "hookspecs": (
        BAD + "    hookspecs = (type('S', (), {'step': __import__('lightloop').hookspec(lambda self: None)}),)\n",
        "plugin 'mistaken' brings hooks that cannot be added",
    ),
    "class": (BAD + "    after = (3,)\n", "cannot be imported: TypeError: Mistaken.after has 3"),
    **{
        name: (mistake.source(default=True), mistake.said.partition("WHO: ")[2])
        for name, mistake in list(REFUSED.items())[::9]
    },
}


@pytest.fixture(autouse=True)
def site(tmp_path, monkeypatch):
    """A folder on the path in which a distribution is installed; what was warned of before is forgotten."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    discovery.warn_once.cache_clear()
    yield tmp_path
    for module in [name for name in sys.modules if name.startswith("dist_")]:
        del sys.modules[module]
    discovery.warn_once.cache_clear()


def told():
    """The warnings of a Trainer that is made, and that trains."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert (
            Trainer(["-progress", "-csv", "-checkpoint", "-model_summary"]).fit(Probe(), probe_batches(1)).global_step
            == 1
        )
    return [str(each.message) for each in warned]


@pytest.mark.parametrize("fault", FAULTS)
def test_it_is_left_out_with_one_warning_and_is_an_error_if_it_is_asked_for(site, fault, monkeypatch, capsys):
    source, said = FAULTS[fault]
    install(site, "dist-bad", source, "mistaken=Mistaken")
    (message,) = told()
    assert "plugin 'mistaken' of dist-bad 1.0 " in message
    assert "left out" in message
    assert said in message
    assert told() == []  # once
    if fault != "group":  # asked for, it takes the place of the default one
        with pytest.raises((PluginError, OrderError, ValueError)):
            Trainer(["mistaken"])
    assert main(["doctor"]) == 1
    assert said.splitlines()[0] in capsys.readouterr().out
    assert main(["plugins"]) == 0
    for variable, value in (("LIGHTLOOP_WITHOUT", "mistaken"), ("LIGHTLOOP_DISCOVER", "0")):
        discovery.warn_once.cache_clear()
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            assert told() == []
    with monkeypatch.context() as patch:
        patch.setenv("LIGHTLOOP_STRICT", "1")
        with pytest.raises((PluginError, OrderError, ValueError)):
            Trainer()


WHO = "plugin 'mistaken' (dist_bad, dist-bad 1.0)"


def sampled(names):
    """Every ninth of ``names`` in each suite, all of them under ``torture``."""
    return [pytest.param(name, marks=() if n % 9 == 4 else pytest.mark.torture) for n, name in enumerate(names)]


@pytest.mark.parametrize("name", sampled(REFUSED))
def test_one_that_is_asked_for_by_name_is_refused_with_its_distribution(site, name):
    install(site, "dist-bad", REFUSED[name].source(), "mistaken=Mistaken")
    with pytest.raises(PluginError, match=f"^{REFUSED[name].pattern(WHO)}"):
        Trainer(["-*", "mistaken"])


@pytest.mark.filterwarnings("ignore:plugin 'mistaken' of dist-bad 1.0 is left out")
@pytest.mark.parametrize("name", DECLARED)
def test_so_is_one_whose_class_cannot_be_made(site, name):
    install(site, "dist-bad", DECLARED[name].source(), "mistaken=Mistaken")
    with pytest.raises(PluginError, match=f"'mistaken' of dist-bad 1.0.*{DECLARED[name].pattern(WHO)}"):
        Trainer(["-*", "mistaken"])


@pytest.mark.parametrize("name", sampled(DOUBTED))
def test_one_that_is_doubted_is_warned_of_with_its_distribution(site, name):
    install(site, "dist-bad", DOUBTED[name].source(), "mistaken=Mistaken")
    with pytest.warns(UserWarning, match=f"^{DOUBTED[name].pattern(WHO)}"):
        Trainer(["-*", "mistaken"])


@pytest.mark.parametrize("name", sampled(ANSWERS))
def test_a_wrong_answer_of_an_installed_one_names_its_distribution(site, name):
    hook, mistake = ANSWERS[name]
    install(site, "dist-bad", mistake.source(), "mistaken=Mistaken")
    with pytest.raises((TypeError, ValueError, IndexError)) as info:
        Trainer(["-*", "mistaken", asking(but=hook)]).fit(Asks(), classification_batches(4))
    assert str(info.value).startswith(f"{WHO} answered {hook!r} with ")
    assert mistake.said in str(info.value)


@pytest.mark.parametrize("value", ["m:X:Y", "", "not a module!", "dist_bad:", ":Mistaken"])
def test_a_malformed_entry_point_is_left_out_and_shown_as_it_is(site, value, capsys):
    install(site, "dist-bad", "")
    (site / "dist_bad-1.0.dist-info" / "entry_points.txt").write_text(f"[lightloop.plugins]\nbent = {value}\n")
    (message,) = told()
    assert message == (
        f"plugin 'bent' of dist-bad 1.0 is left out; it has the entry point {value!r}, which must be 'package.module:Class'"
    )
    assert main(["doctor"]) == 1
    assert f"has the entry point {value!r}" in capsys.readouterr().out


@pytest.mark.parametrize("file", ["METADATA", "entry_points.txt"])
def test_metadata_that_cannot_be_read_is_left_out_and_named(site, file, monkeypatch, capsys):
    install(site, "dist-bad", HEAD.format(default=False), "mistaken=Mistaken")
    install(site, "dist-good", HEAD.format(default=False).replace('"mistaken"', '"good"'), "good=Mistaken")
    path = site / "dist_bad-1.0.dist-info" / file
    path.write_bytes(
        path.read_bytes().replace(b"dist", b"\xff\xfe") if file == "METADATA" else b"[lightloop.plugins]\n\xff=\xfe\n"
    )
    messages = told()
    assert len(messages) == 1, messages
    assert re.search(
        r"dist_bad-1\.0.* is left out; it has (metadata|entry points) that cannot be read: UnicodeDecode", messages[0]
    )
    assert [plugin.name for plugin in Trainer(["-*", "good"]).plugins] == ["good"]
    assert main(["doctor"]) == 1
    assert "dist_bad-1.0" in capsys.readouterr().out
    monkeypatch.setenv("LIGHTLOOP_DISCOVER", "0")
    discovery.warn_once.cache_clear()
    assert told() == []


def test_two_that_fail_are_both_named_and_a_third_is_live(site):
    for name in ("a", "b", "c"):
        source = (HEAD.format(default=True) if name == "b" else HOOK).replace('"mistaken"', f'"{name}{name}"')
        install(site, f"dist-{name}", source, f"{name}{name}=Mistaken")
    messages = told()
    assert sorted(
        re.findall(r"plugin '(\w+)' of dist-\w 1.0 is live by default and is left out", "\n".join(messages))
    ) == ["aa", "cc"]
    assert any(
        "plugin 'bb' of dist-b 1.0 is installed and live by default: list 'bb' in plugins" in each for each in messages
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other hooks are there, and are proposed
        assert "bb" in [plugin.name for plugin in Trainer().plugins]


def test_what_the_user_gets_wrong_is_still_an_error_beside_a_plugin_that_fails(site):
    install(site, "dist-bad", HOOK, "mistaken=Mistaken")
    with pytest.raises(TypeError, match="Trainer has no option 'max_epoch'"):
        Trainer(max_epoch=3)


def test_a_default_of_others_is_shown_where_a_run_begins_unless_it_is_listed(site):
    install(site, "dist-own", BAD, "mistaken=Mistaken")
    assert told() == [
        "plugin 'mistaken' of dist-own 1.0 is installed and live by default: list 'mistaken' in plugins, or leave it out by "
        "'-mistaken'"
    ]
    discovery.warn_once.cache_clear()
    assert [plugin.name for plugin in Trainer(["mistaken", "-*"]).plugins] == ["mistaken"]
    assert "mistaken" not in [plugin.name for plugin in Trainer(["-mistaken"]).plugins]


def test_two_of_others_with_one_keyword_fail_where_it_is_used_alone(site, capsys):
    field = "    size: int = option(0, 'Size.', flag='size')\n"
    for name in ("a", "b"):
        install(
            site,
            f"dist-{name}",
            HEAD.format(default=False).replace('"mistaken"', f'"{name}{name}"') + field,
            f"{name}{name}=Mistaken",
        )
    assert told() == []
    message = (
        "two plugins claim the keyword 'size': dist-a's aa and dist-b's bb. Leave one out with LIGHTLOOP_WITHOUT=bb"
    )
    with pytest.raises(PluginError, match=f"^{message}"):
        Trainer(size=1)
    assert main(["doctor"]) == 1
    assert message in capsys.readouterr().out


def test_variables_that_are_wrong_are_named(monkeypatch):
    monkeypatch.setenv("LIGHTLOOP_WITHOUT", "emma,ema")
    assert told() == ["LIGHTLOOP_WITHOUT leaves out 'emma', and there is no such plugin. Did you mean 'ema'?"]
    monkeypatch.delenv("LIGHTLOOP_WITHOUT")
    for value, said in (
        ("emma", "there is no plugin 'emma'"),
        ("-emma", "no plugin 'emma' to leave out"),
        ("no:Thing", "'no:Thing' cannot be"),
    ):
        monkeypatch.setenv("LIGHTLOOP_PLUGINS", f"-progress,{value}")
        with pytest.raises(PluginError, match=said) as info:
            Trainer()
        assert str(info.value).endswith(f"(LIGHTLOOP_PLUGINS lists {value!r})")
    monkeypatch.setenv("LIGHTLOOP_PLUGINS", "clip")
    with pytest.raises(ValueError, match="gradient_clip_val") as invalid:
        Trainer()
    assert invalid.value.__notes__ == ["LIGHTLOOP_PLUGINS lists clip"]


def test_two_distributions_with_one_command_are_an_error_where_it_is_used(site, capsys):
    for name in ("a", "b"):
        install(site, f"dist-{name}", "def run(arguments):\n    '''Say.'''\n    return 0\n")
        text = f"[lightloop.commands]\nsay = dist_{name}:run\n"
        (site / f"dist_{name}-1.0.dist-info" / "entry_points.txt").write_text(text)
    assert main(["say"]) == 2
    said = "command 'say' is brought by dist-a (dist_a:run) and dist-b (dist_b:run): uninstall one of them"
    assert sorted(re.findall(r"dist-\w \(dist_\w:run\)", capsys.readouterr().err)) == sorted(
        re.findall(r"dist-\w \(dist_\w:run\)", said)
    )
    assert main(["--help"]) == 0
    assert "is brought by" in capsys.readouterr().out


def test_a_plugin_that_may_fail_may_fail_at_its_state_too(tmp_path):
    from lightloop import Plugin

    class Fails(Plugin):
        name = "fails_at_state"
        on_failure = "disable"
        saves = True

        def state_dict(self):
            if self.saves:
                raise ValueError("no state")
            return {"a": 1}

        def load_state_dict(self, state):
            raise ValueError("no such state")

    plugins = ["-progress", "-csv", "-model_summary"]
    options = {"default_root_dir": tmp_path, "run_name": "r", "save_every": 1}
    with pytest.warns(UserWarning, match="out for the rest of the run; it failed in state_dict: ValueError: no state"):
        result = Trainer([*plugins, Fails()], max_epochs=1, **options).fit(Probe(), probe_batches(2))
    assert result.global_step == 2
    Fails.saves = False
    Trainer([*plugins, Fails()], max_epochs=2, resume="auto", **options).fit(Probe(), probe_batches(2))
    with pytest.warns(UserWarning, match="it failed in load_state_dict: "):
        result = Trainer([*plugins, Fails()], max_epochs=3, resume="auto", **options).fit(Probe(), probe_batches(2))
    assert result.global_step == 6
    Fails.on_failure = "stop"
    with pytest.raises(Exception, match="no such state"):
        Trainer([*plugins, Fails()], max_epochs=4, resume="auto", **options).fit(Probe(), probe_batches(2))
