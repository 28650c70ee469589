import json

import pytest

import run_experiment
from tf_robust import hardware
from tf_robust.hardware import Hardware

NEED = {"row": "a", "steps": 1000, "parameters": 1_000_000, "state": 3_000_000, "flops": 8e12, "kept": 6_000_000_000, "making": 2.0,
        "measured": 500, "forward": 1e10, "corrupting": 0.08, "disk": 2**30}


def test_a_step_waits_for_the_slower_of_products_and_pictures_then_for_the_network():
    one = Hardware(devices=1, flops=1e13, utilization=0.5, memory=1e10, network=1e8, cores=4)
    cost = hardware.predicted(NEED, one)  # by hand: 8e12 / 5e12 s of products, 2 / 4 s of pictures
    assert cost["step"] == pytest.approx(1.6) and cost["training"] == pytest.approx(1600) and cost["bound"] == "products"
    assert cost["sent"] == 0 and cost["memory"] == pytest.approx(4 * 3e6 + 1.5 * 6e9) and cost["fits"]
    assert cost["measuring"] == pytest.approx(500 * 0.08 / 4)  # products would take 0.002 s a picture
    eight = Hardware(devices=8, flops=1e13, utilization=0.5, memory=1e9, network=1e8, cores=4, core_speed=2.0)
    cost = hardware.predicted(NEED, eight)  # 0.2 s, 0.25 s, and 7 / 4 of 4 MB at 100 MB/s
    assert cost["bound"] == "pictures" and cost["step"] == pytest.approx(0.25 + 0.07) and cost["sent"] == pytest.approx(7e6)
    assert cost["memory"] == pytest.approx(4 * 3e6 + 1.5 * 6e9 / 8) and not cost["fits"]
    text = hardware.to_text([(NEED, cost)], eight, 3)
    assert "TOO MUCH" in text and "320 ms" in text and "In all 3 runs on 8 devices: 16 min, 3.00 GiB" in text


def test_a_file_of_hardware_is_checked(tmp_path):
    good = {"devices": 2, "flops": 1e12, "utilization": 0.3, "memory": 1e9, "network": 1e9, "cores": 8}
    (tmp_path / "good.json").write_text(json.dumps(good))
    assert Hardware.read(str(tmp_path / "good.json")) == Hardware(**good)
    for bad in ({**good, "flops": 0}, {**good, "gpus": 3}, {name: good[name] for name in good if name != "cores"}):
        (tmp_path / "bad.json").write_text(json.dumps(bad))
        with pytest.raises(ValueError, match="bad.json"):
            Hardware.read(str(tmp_path / "bad.json"))


def test_a_row_is_told_for_other_machines_and_nothing_is_left(tmp_path, monkeypatch, capsys):
    file = tmp_path / "machine.json"
    file.write_text(json.dumps({"devices": 4, "flops": 1e13, "utilization": 0.2, "memory": 1e10, "network": 1e10, "cores": 16}))
    monkeypatch.chdir(tmp_path)
    values = run_experiment.parsed(["--data=digits", "--epochs=3", "--batch_size=100", "--method=gaussian", "--evaluations=clean",
                                    "--seeds=0,1", "--dry_run", "--hardware=machine.json"])
    run_experiment.run(values, run_experiment.define_flags(run_experiment.flags.FlagValues()))
    said = capsys.readouterr().out
    assert said.split("\n\n")[1].splitlines()[1].startswith("gaussian") and "In all 2 runs on 4 devices" in said
    assert list(tmp_path.iterdir()) == [file]
