"""Results of attacks with their budgets, from evaluations."""

from collections.abc import Iterable, Mapping

from tf_robust.evaluation.measure import parse_measure
from tf_robust.report.table_types import AttackResult, Evaluation

_BUDGET = {
    "steps": "{:,} steps",
    "restarts": "{:,} restart(s)",
    "target_classes": "{:,} target classes",
    "queries": "{:,} queries of Square",
}  # fields of a card


def of_evaluations(evaluations: Iterable[Evaluation]) -> dict[tuple[str, str], AttackResult]:
    """Returns {(row, measure): result} of AutoAttack and of Square alone, the first evaluation of each row.

    Args:
        evaluations: as in `aggregate`.
    """
    results: dict[tuple[str, str], AttackResult] = {}
    for evaluation in evaluations:
        for measured in evaluation["rows"]:
            if result := _result(evaluation, measured):
                results.setdefault((evaluation["row"], measured["measure"]), result)
    return results


def _result(evaluation: Evaluation, measured: Mapping) -> AttackResult | None:
    name = parse_measure(measured["measure"])
    part = (evaluation.get("card") or {}).get(name.card_family, {})
    recorded = (evaluation.get("attacks") or {}).get(str(name.plain))
    if name.card_family == "robust_square":
        recorded = {"accuracy_after": {"square": measured["value"]}, "warnings": []}
    if not recorded:
        return None
    budget = ", ".join([*_budget(part), f"{measured['count']:,} images"])
    return {"accuracy_after": recorded["accuracy_after"], "warnings": recorded["warnings"], "budget": budget}


def _budget(part: Mapping) -> list[str]:
    texts = [text.format(part[field]) for field, text in _BUDGET.items() if field in part]
    return [text.replace("(s)", "" if text.startswith("1 ") else "s") for text in texts]
