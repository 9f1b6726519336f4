"""Turn a plan into the transfers that carry it out: plan -> TransferBatch.

Every function here is pure numpy and knows no clock; ``job/sim`` posts what they
return.
"""
