import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parent.parent / "examples" / "callback.py"


def test_the_callback_ends_the_run_when_it_is_good_enough(capsys):
    result = runpy.run_path(str(EXAMPLE))["main"](["--target", "0.9", "--epochs", "8"])
    printed = capsys.readouterr().out
    assert result.status == "stopped"
    assert 1 <= result.epoch < 8
    assert result.global_step == 45 * result.epoch
    assert result.metrics["accuracy"] >= 0.9
    assert printed.startswith("4,810 parameters\nepoch  1: accuracy ")
    assert printed.count("accuracy") == result.epoch
    assert f"after {1437 * result.epoch:,} digits" in printed
