"""Figures for papers, from the tables of results alone;
`simshuffle.studies.presentation.catalogue` lists them.
"""

from simshuffle.study.registry import merge_extensions

KINDS = {
    "breakdown": "Where the seconds of an epoch go: a bar for each run.",
    "scaling": "Time of an epoch against the number of ranks, beside ideal scaling.",
    "exchange": "Time of the exchange against the number of ranks.",
    "hidden": "Exchange that lengthens an epoch, against exchange hidden behind other work; for"
    " results of 'hiding', the largest hidden Q.",
    "fraction": "Time of an epoch against the exchanged fraction Q.",
    "congestion": "Heat map of the load of links by tier, for each exchange pattern.",
    "links": "Utilisation of links over simulated time, by tier: mean and peak of each epoch.",
    "completion": "When exchanges end: the share of ranks, or of messages, over time.",
    "waterfall": "Epochs from one exchange to another, a step for each switch.",
    "parallel-strategies": "What an iteration takes under each way to divide training, by number of"
    " GPUs.",
    "memory": "Memory of a GPU under each way to divide training.",
    "storage": "Node-local storage of machines against sizes of data sets; needs no result.",
} | {name: figure.shows for name, figure in merge_extensions().figures.items()}
"""Kinds of figures, with a sentence on what each shows."""
