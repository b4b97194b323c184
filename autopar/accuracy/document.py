"""The JSON of ``autopar accuracy``."""

from __future__ import annotations

from collections.abc import Mapping

from .metrics import ErrorSummary
from .score import ACCURACY_SCHEMA_VERSION, Accuracy

Groups = Mapping[str, Mapping[str, ErrorSummary]]


def document(accuracy: Accuracy) -> dict[str, object]:
    """``accuracy`` as plain values: times in seconds, memory in bytes, errors and shares as fractions; None where there is no figure."""
    return {
        "schema_version": ACCURACY_SCHEMA_VERSION,
        "rows": accuracy.rows,
        "scored": len(accuracy.predictions),
        "skipped": accuracy.skipped,
        "step_time": {**_summary(accuracy.step_time), "groups": _groups(accuracy.step_time_groups)},
        "memory": {
            **_summary(accuracy.memory),
            "over_predicted": accuracy.over_predicted,
            "under_predicted": accuracy.under_predicted,
            "out_of_memory": accuracy.out_of_memory,
            "groups": _groups(accuracy.memory_groups),
        },
        "ranking": accuracy.ranking,
        "predictions": [
            {
                "run_id": row.run_id,
                "measured_seconds": row.measured_seconds,
                "predicted_seconds": row.predicted_seconds,
                "measured_bytes": row.measured_bytes,
                "predicted_bytes": row.predicted_bytes,
            }
            for row in accuracy.predictions
        ],
    }


def _summary(summary: ErrorSummary) -> dict[str, object]:
    return {name: getattr(summary, name) for name in summary.__slots__}


def _groups(groups: Groups) -> dict[str, object]:
    return {column: {value: _summary(summary) for value, summary in members.items()} for column, members in groups.items()}
