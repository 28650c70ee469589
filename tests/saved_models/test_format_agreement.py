"""A network is evaluated alike in every format of its framework."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("ai_edge_litert")


@pytest.mark.slow
def test_formats_agree():
    from benchmarks import format_agreement

    rows = format_agreement.measure(images=100, epochs=2)
    formats = {(row["framework"], row["format"]) for row in rows}
    assert {("Keras", ".keras"), ("Keras", ".h5"), ("Keras", ".tflite"), ("PyTorch", "TorchScript"), ("PyTorch", ".onnx")} <= formats
    for row in rows:
        assert row["difference"] <= format_agreement.GOAL, row
        gradients = row["format"] not in (".tflite", ".onnx") and (row["framework"], row["format"]) != ("PyTorch", "in memory")
        assert ("robust/pgd/linf_0.01" in row["values"]) == gradients, row
        assert row["values"]["clean"] > 0.5
