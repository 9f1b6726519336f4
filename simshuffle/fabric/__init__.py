"""Networks that carry bytes: topologies, routes, sharing of links, and collectives.

In: a topology (a few numbers, or the cables of a real fabric), a routing, and flows,
each with bytes, a route and perhaps flows that it waits for. Out: when each flow ends.

The law: every resource is a link with a capacity. Flows that share links get max-min
fair rates (`network.fluid`), move as packets with credits (`network.packet`), or are
bounded by the fullest link (`network.analytic`). Nothing here knows a host, a rank, a
scenario or SimPy.

To read: `topology.base` (what a network is made of), `routing.fabric` and
`routing.router` (ways), the head of `network.fluid` (the algorithm), `allreduce.base`
(steps of a collective as flows).
"""
