"""Studies behind ``simshuffle run`` and ``simshuffle sweep``: runs of scenarios, seeds
and swept values.
"""
