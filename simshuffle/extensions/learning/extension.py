"""The schemas and figures that this extension adds to simshuffle."""

from __future__ import annotations

from simshuffle.study.extension import Extension, PaperFigure

_PAPER = "simshuffle.extensions.learning.time_to_accuracy.paper"
EXTENSION = Extension(
    schemas={"study": "simshuffle.extensions.learning.schema:study_schema"},
    figures={
        "accuracy": PaperFigure(
            f"{_PAPER}:ACCURACY", "Test accuracy against simulated time."
        ),
        "frontier": PaperFigure(
            f"{_PAPER}:FRONTIER",
            "Accuracy against time, storage of a host and requests, with what is on the Pareto"
            " front.",
        ),
        "storage-accuracy": PaperFigure(
            f"{_PAPER}:STORAGE_ACCURACY",
            "Storage of a host against accuracy, with the time in colour.",
        ),
    },
)
