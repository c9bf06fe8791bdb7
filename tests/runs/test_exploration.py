"""Two runs of each output take turns by every schedule up to a bound: readers find the old state or the new one.

A schedule is the list of what happens at some steps: a run is killed, stopped, or a disk fails (`support.simulation`).
Each state in which a run is killed is also what a reader finds at that moment. `judge` checks the rules.

By default, a few schedules of one action are executed; marked as slow, 10 of each; at night, all of them, and random
ones of two actions, whose seed the error prints.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.explored import WRITES
from support.mutants import MUTANTS
from support.simulation import ACTIONS, Explorer, Violation

# A run warns that it can't remove its folder.
pytestmark = pytest.mark.filterwarnings("ignore:.* can't be removed")
# Most schedules that a test executes: some of them, or all at night.
SCHEDULES = [
    pytest.param(10, marks=pytest.mark.slow),
    pytest.param(10_000, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)]),
]
FAULTS, TURNS = ("kill", "full", "error"), ("stop", "pause")


def check(violations: list[Violation]) -> None:
    assert not violations, f"{len(violations)} violations, of which the first is\n{violations[0]}"


@pytest.mark.parametrize("name", ["appended rows", "added shards", "replaced group", "added split in a store"])
def test_some_schedules_of_one_action(name: str) -> None:
    with Explorer(WRITES[name].scenario("A")) as explorer:
        check(explorer.explore(1, FAULTS, most=6, seed=1, stops_at=100).violations)
    if "store" not in name:
        with Explorer(WRITES[name].scenario("AB")) as explorer:
            check(explorer.explore(1, TURNS, most=3, seed=1, stops_at=100).violations)


@pytest.mark.parametrize("most", SCHEDULES)
@pytest.mark.parametrize("names", ["A", "AB"])
@pytest.mark.parametrize("name", WRITES)
def test_schedules_of_one_action(name: str, names: str, most: int) -> None:
    if "commit" in name:
        pytest.importorskip("icechunk")
    if names == "AB" and "job" in name:
        pytest.skip("another job of these files continues this one")
    with Explorer(WRITES[name].scenario(names)) as explorer:
        check(explorer.explore(1, FAULTS if names == "A" else TURNS, most=most, seed=1, stops_at=10_000).violations)


@pytest.mark.parametrize("most", SCHEDULES)
@pytest.mark.parametrize(
    "name", [name for name, write in WRITES.items() if write.adds and "commit" not in name and not write.in_store]
)
def test_another_run_comes_between_a_call_that_was_killed_and_the_same_call(name: str, most: int) -> None:
    """B adds rows before A is made again, which must find what it had added."""
    with Explorer(WRITES[name].scenario("AB", again="BA")) as explorer:
        check(explorer.explore(1, ["kill", "error"], most=most, seed=1, stops_at=10_000).violations)


@pytest.mark.slow
def test_a_run_records_too_late_what_it_publishes_and_is_killed() -> None:
    """A wakes before it records its files, which B has removed; the call of A adds them when it is made again."""
    with Explorer(WRITES["added shards in a store"].scenario("AB")) as explorer:
        steps = explorer.execute(())[0].steps
        at = next(number for number, step in enumerate(steps) if step.changes and step.path.endswith("/commit.json"))
        steps = explorer.execute(((at, "stop"),))[0].steps
        woken = 1 + max(number for number, step in enumerate(steps) if step.actor == "B")
        _, wrong = explorer.execute(((at, "stop"), (woken, "kill")))
    assert wrong is None


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in WRITES if not re.search("LeRobot|store|job", name)])
def test_random_schedules_of_two_actions(name: str) -> None:
    if "commit" in name:
        pytest.importorskip("icechunk")
    seed = random.randrange(2**32)
    with Explorer(WRITES[name].scenario("AB")) as explorer:
        found = explorer.explore(2, ACTIONS, most=30, seed=seed, stops_at=10_000).violations
    assert not found, f"seed {seed}: {found[0]}"


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_that_is_switched_off_is_noticed(name: str) -> None:
    """The exploration finds a violation, after all shorter schedules, and prints its steps."""
    mutant = MUTANTS[name]
    scenario = WRITES[mutant.write].scenario(mutant.calls)

    def begin(out: str) -> None:
        scenario.begin(out)
        mutant.prepare(Path(out))

    with pytest.MonkeyPatch.context() as patch, Explorer(replace(scenario, begin=begin)) as explorer:
        mutant.apply(patch)
        (violation,) = explorer.explore(mutant.bound, mutant.actions).violations
    print(violation)
    assert violation.what.startswith(mutant.rule)
    assert len(violation.schedule) == mutant.bound
    assert str(violation.schedule) in str(violation)
