import itertools
import re
import shlex

import pytest

from tf_robust import attacks, corruptions, methods, models
from tf_robust.cli.command_line import COMMANDS
from tf_robust.cli.show import _GROUPS, command_help, full_help, help_text, listing
from tf_robust.data.augment import VIEWS


def test_the_list_has_all_names_with_a_summary():
    lines = listing().splitlines()
    said = {line.split()[0].rstrip("*"): line.split()[1:] for line in lines if line.startswith("  ")}
    known = (methods.METHODS, models.MODELS, attacks.ATTACKS, VIEWS, corruptions.CORRUPTIONS, ("synthetic_digits", "flags/fcl/table1"))
    for name in itertools.chain(*known):
        assert said[name], name
    assert said["flags/fcl/table1"][-2:] == ["(8", "rows)"] and max(map(len, lines)) <= 118


def test_help_is_short_and_has_existing_flags():
    text = help_text()
    assert len(text.splitlines()) <= 82 and max(map(len, text.splitlines())) <= 118
    named = {word.lstrip("-").split("=")[0] for line in text.splitlines() if line.startswith("  --") for word in line.split()[:1]}
    assert named == {name for group in _GROUPS.values() for name in group} <= COMMANDS["train"].parameters().keys()
    assert "--epochs=10 " in text and all(f"\n  {name} " in text for name in COMMANDS) and "--nun_floor" in text
    assert "--attack_queries" not in text and "--corrupted_dir" not in text


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_help_of_a_command_is_short_and_its_examples_can_be_read(command):
    lines = command_help(command).splitlines()
    assert len(lines) < 100 and max(map(len, lines)) <= 120
    assert {*command.flags} <= {*command.parameters(), *command.unused()}
    for example in command.examples:
        words = shlex.split(re.sub(r"    \(.*", "", example))
        chosen = COMMANDS[words[0]]
        known = {*chosen.parameters([word for word in words if "flagfile" not in word]), "flagfile"}
        assert {word.removeprefix("--").split("=")[0] for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("name, count", [("train", 67), ("evaluate", 39), ("attack", 45), ("harden", 45), ("export", 26), ("corrupt", 26)])
def test_a_command_has_few_flags(name, count):
    assert len(COMMANDS[name].parameters()) <= count
    assert full_help(COMMANDS[name], []).count("\n  --") == len(COMMANDS[name].parameters())


def test_the_options_of_other_evaluations_are_named_beside_them():
    lines = command_help(COMMANDS["attack"], ["--evaluations=clean,slices"]).splitlines()
    further = lines[lines.index("Further flags of --evaluations=") :]
    assert "  slices" not in {line[:8] for line in further}
    assert "  attack_curves                 --curve_attacks, --attack_radii, --attack_subset" in further
    assert any(line.startswith("  noise ") and line.endswith(" --nun_floor") for line in further)


def test_a_command_has_the_flags_of_its_own_method_alone():
    assert "fcl_k" not in COMMANDS["train"].parameters() and "epochs" not in COMMANDS["evaluate"].parameters()
    text = full_help(COMMANDS["train"], ["--method=fcl", "--views=augmix"])
    assert "--fcl_k=" in text and "--augmix_width=3" in text and "--noisymix" not in text
