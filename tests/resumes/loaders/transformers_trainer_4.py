"""The same with transformers 4.56.2 and accelerate 1.13.0, where skipped batches are of epoch 0."""

from transformers_trainer import make, resume, state

KIND = "transformers_trainer"
NEEDS = "transformers 4.56.2, accelerate 1.13.0"
SETTINGS = [{"keeps_epoch": False}, {"keeps_epoch": False, "ignore_data_skip": True}]
__all__ = ["make", "resume", "state"]
