"""What watches a training from inside, in the interpreter that runs it: the standard library alone,
so that it also works where simshuffle is not installed."""
