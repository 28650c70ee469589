from tf_robust.report import latex, tables


def test_latex_has_values_and_the_paper_and_escapes_special_characters(three_seeds, evaluate):
    table = tables.aggregate([*three_seeds, evaluate("a_b & 50%", 0, {"un": 0.5})], {"xe": {"un": [0.407, 0.03]}})
    text = latex.to_latex(table, "Table 1: #1")
    assert r"xe & \textbf{0.910 $\pm$ 0.010} & 0.400 $\pm$ 0.050 \\" in text
    assert r" &  & {\footnotesize paper 0.407 $\pm$ 0.030} \\" in text
    assert r"fcl & \textbf{0.910 $\pm$ 0.000} & \textbf{0.650 $\pm$ 0.050} \\" in text
    assert r"a\_b \& 50\% & -- & 0.500 \\" in text and r"Table 1: \#1" in text and r"\begin{tabular}{lrr}" in text
    assert r" & Clean accuracy (BAL) & Uniform noise (UN) \\" in text
