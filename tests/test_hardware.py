import json

import pytest

from benchmarks import hardware
from benchmarks.hardware import Hardware
from tests.command_line import runs_of
from tests.hardware_needs import NEED
from tf_robust import data


def test_a_step_takes_the_slower_of_computation_and_input_plus_the_network():
    one = Hardware(devices=1, flops=1e13, utilization=0.5, memory=1e10, network=1e8, cores=4)
    cost = hardware.predict_cost(NEED, one)  # by hand: 8e12 / 5e12 s of products, 2 / 4 s of images
    assert cost["step"] == pytest.approx(1.6) and cost["training"] == pytest.approx(1600) and cost["bound"] == "products"
    assert cost["sent"] == 0 and cost["memory"] == pytest.approx(4 * (3e6 + 1e6) + 1.5 * 6e9) and cost["fits"]
    assert cost["evaluation"] == pytest.approx(500 * 0.08 / 4)  # products would take 0.002 s an image
    eight = Hardware(devices=8, flops=1e13, utilization=0.5, memory=1e9, network=1e8, cores=4, core_speed=2.0)
    cost = hardware.predict_cost(NEED, eight)  # 0.2 s, 0.25 s, and 7 / 4 of 4 MB at 100 MB/s
    assert cost["bound"] == "images" and cost["step"] == pytest.approx(0.25 + 0.07) and cost["sent"] == pytest.approx(7e6)
    assert cost["memory"] == pytest.approx(4 * (3e6 + 1e6) + 1.5 * 6e9 / 8) and not cost["fits"]
    assert cost["evaluation"] == pytest.approx(500 * 0.08 / 8)  # by one device
    text = hardware.to_text([(NEED, cost)], eight, 3)
    assert "TOO MUCH" in text and "320 ms" in text and "Total of 3 runs on 8 devices, one after the other: 16 min, 3.00 GiB" in text


def test_invalid_hardware_files_raise(tmp_path):
    good = {"devices": 2, "flops": 1e12, "utilization": 0.3, "memory": 1e9, "network": 1e9, "cores": 8}
    (tmp_path / "good.json").write_text(json.dumps(good))
    assert Hardware.read(str(tmp_path / "good.json")) == Hardware(**good)
    without = {name: good[name] for name in good if name != "cores"}
    for bad in ({**good, "flops": 0}, {**good, "utilization": 14}, {**good, "gpus": 3}, without):
        (tmp_path / "bad.json").write_text(json.dumps(bad))
        with pytest.raises(ValueError, match="bad.json.*docs/reference/scale.md describes the fields"):
            Hardware.read(str(tmp_path / "bad.json"))


def test_a_row_is_predicted_for_other_machines_without_files(tmp_path, monkeypatch, capsys):
    file = tmp_path / "machine.json"
    file.write_text(json.dumps({"devices": 4, "flops": 1e13, "utilization": 0.2, "memory": 1e10, "network": 1e10, "cores": 16}))
    monkeypatch.chdir(tmp_path)
    arguments = "--data=digits --epochs=3 --batch_size=100 --method=gaussian --evaluations=clean --seeds=0,1".split()
    hardware.main("machine.json", *arguments)
    said = capsys.readouterr().out
    assert said.splitlines()[1].startswith("row ") and "Total of 2 runs on 4 devices" in said
    assert list(tmp_path.iterdir()) == [file]


def needs(*arguments):
    (run,) = runs_of("--data=digits", "--batch_size=100", "--epochs=4", "--evaluations=clean", *arguments)
    return hardware.resource_needs(run)


def test_needs_equal_those_of_the_network():
    plain, source = needs(), data.open_source("digits", "train", None)
    first = 2 * 28 * 28 * 25 * 6
    forward = first + 2 * (10 * 10 * 25 * 6 * 16 + 400 * 120 + 120 * 84 + 84 * 10)  # LeNet, by hand
    assert plain["forward"] == forward and plain["flops"] == 100 * (3 * forward - first)  # the pixels need no gradient
    assert plain["steps"] == 4 * (len(source) // 100)
    attacked = needs("--method=adversarial", "--adversarial_steps=3")
    assert attacked["flops"] / plain["flops"] == pytest.approx((3 * forward - first + 3 * 2 * forward) / (3 * forward - first))
    late = needs("--method=fcl", "--fcl_k=20", "--fcl_start_epoch=2")
    whole = needs("--method=fcl", "--fcl_k=20")
    assert late["flops"] == pytest.approx((whole["flops"] + plain["flops"]) / 2, rel=0.01)
    assert late["kept"] == pytest.approx(whole["kept"], rel=0.01) and plain["making"] > 0 == plain["corrupting"]
