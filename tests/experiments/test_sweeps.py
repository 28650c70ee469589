import pytest

from tf_robust.experiments import sweeps

DEFAULTS = {"fcl_k": 8, "fcl_sigma": 0.1, "views": ("clean",)}


def test_a_grid_is_the_product_of_its_axes():
    points = sweeps.grid("fcl_k=1,2; fcl_sigma=0.1,0.5", DEFAULTS)
    assert [sweeps.name_of(point) for point in points] == [
        "fcl_k=1,fcl_sigma=0.1",
        "fcl_k=1,fcl_sigma=0.5",
        "fcl_k=2,fcl_sigma=0.1",
        "fcl_k=2,fcl_sigma=0.5",
    ]
    assert sweeps.name_of({"radius": "1/255"}) == "radius=1_255"


@pytest.mark.parametrize(
    "text, said",
    [
        ("fcl_q=1", "Unknown flag to sweep: 'fcl_q'. Did you mean"),
        ("views=clean,augmix", "one value"),
        ("fcl_k=1,1", "once"),
        ("fcl_k=1;fcl_k=2", "once"),
        ("fcl_k", "NAME=VALUE"),
        ("fcl_k=", "NAME=VALUE"),
        (";", "Received: ';'"),
    ],
)
def test_invalid_grids_raise(text, said):
    with pytest.raises(ValueError, match=said):
        sweeps.grid(text, DEFAULTS)


def test_the_best_row_has_the_best_mean_over_seeds():
    def found(row, seed, clean, flips):
        return {"row": row, "seed": seed, "rows": [{"measure": "clean", "value": clean}, {"measure": "flips/mean", "value": flips}]}

    evaluations = [found("a", 0, 0.9, 0.2), found("a", 1, 0.1, 0.2), found("b", 0, 0.6, 0.3), found("b", 1, 0.6, 0.3)]
    assert sweeps.best(evaluations)[0] == "b" and sweeps.best(evaluations, "flips/mean")[0] == "a"
    assert "Chosen of 2 by clean on validation images (0.6000): b." in sweeps.best(evaluations)[1]
    with pytest.raises(ValueError, match="measure to choose by"):
        sweeps.best(evaluations, "un")
