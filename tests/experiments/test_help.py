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
    assert "--epochs=10 " in text and all(f"\n  {name} " in text for name in COMMANDS) and "--attack_queries" in text and "fcl (1" in text


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_help_of_a_command_is_short_and_its_examples_can_be_read(command):
    lines = command_help(command).splitlines()
    assert len(lines) < 100 and max(map(len, lines)) <= 120
    assert {*command.flags, *command.further} <= command.parameters().keys() and not {*command.flags} & {*command.further}
    for example in command.examples:
        words = shlex.split(re.sub(r"    \(.*", "", example))
        chosen = COMMANDS[words[0]]
        known = {*chosen.parameters([word for word in words if "flagfile" not in word]), "flagfile"}
        assert {word.removeprefix("--").split("=")[0] for word in words if word.startswith("--")} <= known


def test_a_command_has_the_flags_of_its_own_method_alone():
    assert "fcl_k" not in COMMANDS["train"].parameters() and "epochs" not in COMMANDS["evaluate"].parameters()
    text = full_help(COMMANDS["train"], ["--method=fcl", "--views=augmix"])
    assert "--fcl_k=" in text and "--augmix_width=3" in text and "--noisymix" not in text
