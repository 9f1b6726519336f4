"""Training workloads: networks of layers and their division over ranks, strategies of
shuffling, orders of loaders, and orders after a resumption.

In: a seed, an epoch, numbers of samples and ranks. Out: integer arrays: which rank has
which sample in which place (`orders`), which sample goes from whom to whom after which
iteration (`exchange`); and bytes and operations of a step (`layers`, `parallelism`).

The law: everything follows from the seed, by a named random stream for each purpose and
epoch. Time appears nowhere: the simulator and the trainer read the same
`exchange.plan.ExchangePlan`.

To read: `exchange.strategies` (the strategies), `exchange.plan` (their product),
`exchange.epochs` (epochs dealt one after the other), `orders.order`,
`parallelism.step`.
"""
