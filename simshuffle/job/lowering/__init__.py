"""From what is planned to the transfers that carry it out: plan -> TransferBatch. Pure numpy,
without a clock."""
