"""The same with accelerate 1.13.0, where the skipped loader sets its sampler back to epoch 0."""

from skip_first_batches import make, resume, state

NEEDS = "accelerate 1.13.0"
SETTINGS = [
    {"kind": "skip_first_batches", "keeps_iteration": False},
    {"kind": "skip_first_batches", "keeps_iteration": False, "sets_epoch": False},
]
__all__ = ["make", "resume", "state"]
