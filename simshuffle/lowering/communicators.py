"""Groups of ranks that communicate, several at once on one fabric: what a node of a step costs, and
its transfers."""
