"""`--plugin=MODULE`: a user's own method and corruption from the command line."""

import sys

import pytest

from tests.command_line import main
from tests.small_runs import CLEAN, eagerly, read, without_charts  # noqa: F401
from tf_robust import corruptions, methods
from tf_robust.utils import plugins

pytestmark = pytest.mark.usefixtures("eagerly")

MODULE = '''
import tensorflow as tf

from tf_robust import corruptions, methods


class HalfCrossEntropy(methods.CrossEntropy):
    """Cross-entropy times a factor.

    Args:
        factor: of the cross-entropy.
    """

    def __init__(self, classifier, *, factor: float = 0.5, **kwargs):
        super().__init__(classifier, **kwargs)
        self.factor = factor

    def loss_terms(self, batch, training):
        terms, logits = super().loss_terms(batch, training)
        return {name: self.factor * term for name, term in terms.items()}, logits


methods.METHODS["half_cross_entropy"] = HalfCrossEntropy
corruptions.CORRUPTIONS["dimmed"] = corruptions.Corruption("dimmed", lambda images, level: images * level, levels=(0.8, 0.6, 0.4, 0.2, 0.0))
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a module `my_methods`, in which commands run; what it registers is removed."""
    (tmp_path / "my_methods.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    registries = [(registry, dict(registry)) for registry in (methods.METHODS, corruptions.CORRUPTIONS, plugins.named)]
    yield tmp_path
    for registry, before in registries:
        registry.clear()
        registry.update(before)
    sys.modules.pop("my_methods", None)


def test_a_run_remembers_its_plugin_and_its_code(folder):
    train = ["train", *CLEAN, "--method=half_cross_entropy", "--half_cross_entropy_factor=0.25", "--workdir=run"]
    main("--plugin=my_methods", *train)
    assert {"--half_cross_entropy_factor=0.25", "--plugin=my_methods"} < {*(folder / "run/flags.txt").read_text().splitlines()}
    assert read("run/evaluation.json")["method"] == "half_cross_entropy"
    assert "--plugin=my_methods" in (folder / "run/report.md").read_text()
    plugins.named.clear()
    del corruptions.CORRUPTIONS["dimmed"], methods.METHODS["half_cross_entropy"], sys.modules["my_methods"]
    main("evaluate", "run", "--evaluations=clean,corruptions", "--corruptions=dimmed", "--severities=5", "--workdir=dim")
    values = {row["metric"]: row["value"] for row in read("dim/evaluation.json")["rows"]}
    assert values["corruptions/dimmed/5"] < 0.3  # black images
    (folder / "my_methods.py").write_text(MODULE.replace("self.factor * term", "2 * self.factor * term"))
    with pytest.raises(ValueError, match="Expected the code and the weights with which run was trained"):
        main("--plugin=my_methods", *train)
    (folder / "my_methods.py").write_text(MODULE)
    (folder / "row.flags").write_text("\n".join(["--plugin=my_methods", *train[1:]]))
    main("train", "--flagfile=row.flags")  # it is already done
