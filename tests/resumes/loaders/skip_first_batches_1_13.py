"""The same with accelerate 1.13.0, where the skipped loader sets its sampler back to epoch 0."""

from skip_first_batches import make, resume, state

KIND = "skip_first_batches"
NEEDS = "accelerate 1.13.0"
SETTINGS = [{"keeps_iteration": False}, {"keeps_iteration": False, "sets_epoch": False}]
__all__ = ["make", "resume", "state"]
