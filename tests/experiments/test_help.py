import itertools
import re
import shlex

import pytest
from absl.flags import FlagValues

from tf_robust import attacks, cli, corruptions, methods, models
from tf_robust.data.augment import VIEWS
from tf_robust.experiments.commands import COMMANDS
from tf_robust.experiments.flags import define_flags, flag_names
from tf_robust.experiments.help import _GROUPS, command_help, help_text, listing


def test_the_list_has_all_names_with_a_summary():
    lines = listing().splitlines()
    said = {line.split()[0].rstrip("*"): line.split()[1:] for line in lines if line.startswith("  ")}
    known = (methods.METHODS, models.MODELS, attacks.ATTACKS, VIEWS, corruptions.CORRUPTIONS, ("synthetic_digits", "flags/fcl/table1"))
    for name in itertools.chain(*known):
        assert said[name], name
    assert said["flags/fcl/table1"][-2:] == ["(8", "rows)"] and max(map(len, lines)) <= 118


def test_help_is_short_and_has_existing_flags():
    values = FlagValues()
    define_flags(values)
    names = flag_names()
    text = help_text(values)
    assert len(text.splitlines()) <= 82 and max(map(len, text.splitlines())) <= 118
    told = {word.lstrip("-").split("=")[0] for line in text.splitlines() if line.startswith("  --") for word in line.split()[:1]}
    assert told == {name for group in _GROUPS.values() for name in group} <= set(names)
    assert "--epochs=10 " in text and all(f"\n  {name} " in text for name in COMMANDS) and "--attack_queries" in text and "fcl (1" in text


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_help_of_a_command_is_short_and_its_examples_can_be_read(command):
    values = FlagValues()
    define_flags(values)
    lines = command_help(command, values).splitlines()
    assert len(lines) < 100 and max(map(len, lines)) <= 120
    assert {*command.flags, *command.further} <= set(flag_names()) and not {*command.flags} & {*command.further}
    for example in command.examples:
        words = shlex.split(re.sub(r"    \(.*", "", example))
        assert {word.removeprefix("--").split("=")[0] for word in words if word.startswith("--")} <= {*flag_names(), "flagfile"}
        assert words[0] in COMMANDS
