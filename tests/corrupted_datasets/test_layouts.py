import pytest

from tf_robust.configs.data import part_of
from tf_robust.corrupted_datasets.layouts import Plan, Unit


def plan(names=("a", "b", "c"), size=25, chunk=10):
    return Plan(names, size, chunk, (2, 3, 1), ("x",), "test", False)


def test_units_are_all_corruptions_severities_and_chunks():
    units = plan().units()
    assert len(units) == len(set(units)) == 3 * 5 * 3
    assert set(units) == {Unit(name, severity, chunk) for name in "abc" for severity in (1, 2, 3, 4, 5) for chunk in (0, 1, 2)}


def test_chunks_cover_the_images():
    assert [plan().range_of(chunk) for chunk in range(plan().chunks)] == [(0, 10), (10, 20), (20, 25)]
    assert plan(size=20).chunks == 2 and plan(size=21).chunks == 3
    assert plan().values([Unit("a", 1, 0), Unit("a", 1, 2)]) == (10 + 5) * 2 * 3


@pytest.mark.parametrize("parts", [1, 2, 7, 16, 45, 60])
def test_parts_are_disjoint_and_complete(parts):
    part_units = [plan().part(part, parts) for part in range(1, parts + 1)]
    assert sum(part_units, []) == plan().units()
    assert max(map(len, part_units)) - min(map(len, part_units)) <= 1


def test_a_part_reads_few_chunks():
    assert {unit.chunk for unit in plan().part(2, 3)} == {1}


def test_the_first_shard_is_1():
    assert part_of("3/16") == (3, 16) and part_of("1/1") == (1, 1) and part_of("16/16") == (16, 16)


@pytest.mark.parametrize("shard", ["0/16", "17/16", "1/0", "3", "", "a/b", "-1/4", "1/2/3", "1.0/2"])
def test_other_shards_are_rejected(shard):
    with pytest.raises(ValueError, match="PART/PARTS"):
        part_of(shard)
