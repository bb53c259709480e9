"""Says at the end how much the machine has tried in all."""

import pytest

COUNTED = ("boundaries", "lives", "values")


@pytest.fixture
def counted(record_property):
    """Takes a report of the machine, so that it is in the total."""

    def count(report):
        for name in COUNTED:
            record_property(f"machine {name}", getattr(report, name))
        return report

    return count


def pytest_terminal_summary(terminalreporter):
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    totals = dict.fromkeys(COUNTED, 0)
    for report in reports:
        for name, value in getattr(report, "user_properties", []):
            if name.startswith("machine "):
                totals[name.removeprefix("machine ")] += value
    if totals["lives"]:
        said = (
            "runs were killed at {boundaries:,} boundaries, resumed in {lives:,} lives, and {values:,} values compared"
        )
        terminalreporter.write_line(said.format(**totals))
